"""Somebody who starts for the first time: an empty home, and commands in it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protocol.addresses import Home
from tests.integration.cluster import config_text

ROOT = Path(__file__).parents[2]
EMBEDDED = config_text('[[workers]]\nid = "w-1"\nmodel = "embedded"\n')
needs_mlx = pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed")


def run(
    command: list[str], home: Home, *, environ: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """The command in this home. Both of its streams are in `stdout`."""
    return subprocess.run(
        [sys.executable, "-P", *command],
        env={**os.environ, "STUDIOFLEET_HOME": str(home.path), **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
        **more,
    )


def worker(home: Home) -> list[str]:
    return ["-m", "worker", "--config", str(home.config), "--id", "w-1"]
