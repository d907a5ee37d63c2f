"""The same strict clients in versions that people still have: their tests once more, beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.conformance.environments import environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OLDER = {"openai": "1.109.1", "anthropic": "0.125.0"}
TESTS = ("test_openai.py", "test_openai_chat.py", "test_anthropic.py")
LEAST = 80


def test_openai_1_and_an_anthropic_of_last_year():
    python = environment(
        *(f"{name}=={version}" for name, version in OLDER.items()),
        beside=Path(sysconfig.get_paths()["purelib"]),
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}

    def run(*arguments: str) -> str:
        command = [str(python), "-P", *arguments]
        environ = kept | {"PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}"}
        ran = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr[-2_000:]
        return ran.stdout

    versions = "import openai, anthropic; print(openai.__version__, anthropic.__version__)"
    assert run("-c", versions).split() == [*OLDER.values()]
    told = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/conformance/{name}" for name in TESTS)
    )
    passed = re.search(r"(\d+) passed", told)
    assert passed, told
    assert int(passed[1]) >= LEAST
    assert "skipped" not in told
