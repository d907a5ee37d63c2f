"""The soak in a minute: too short to find a slow leak, long enough to find a fast one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SOAK = Path(__file__).parents[2] / "scripts" / "soak"


def test_a_short_soak_is_flat():
    command = [str(SOAK), "--seconds", "16", "--bursts", "8", "--per-minute", "0.3", "--seed", "20"]
    soak = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert soak.returncode == 0, soak.stdout
    assert "864 requests: 0.3 a minute for two days" in soak.stdout
    assert soak.stdout.endswith("soak: flat\n")


def test_a_soak_explains_how_it_is_called():
    soak = subprocess.run([SOAK, "--bursts", "1"], capture_output=True, text=True, check=False)
    assert soak.returncode == 2
    assert "fewer than 8" in soak.stderr
