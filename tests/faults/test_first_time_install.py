"""What goes wrong at `scripts/install`: cause, cure, exit code, and nothing half done."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.newcomer import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a clone as `scripts/install` looks at, and an empty search path beside it."""
    for name in ("scripts/install", "requirements", "pyproject.toml", "protocol/__init__.py"):
        target = tmp_path / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target)
        else:
            shutil.copy(ROOT / name, target)
    (tmp_path / "bin").mkdir()
    for tool in ("cat", "date", "dirname", "grep", "rm", "uname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    program(tmp_path / "bin" / "id", "echo 1000")
    return tmp_path / "clone"


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def install(clone: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh") or "/bin/sh", str(clone / "scripts" / "install")],
        env={"PATH": str(clone.parent / "bin"), "HOME": str(clone.parent), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_python_that_is_too_old(clone):
    old = program(clone.parent / "bin" / "python3", "exit 1")
    result = install(clone, PYTHON=str(old))
    assert result.returncode == 1
    assert f"PYTHON={old}: no Python 3.11 or later is found there" in result.stdout
    assert "PYTHON=/path/to/python3 scripts/install" in result.stdout
    assert not (clone / ".venv").exists()


def test_an_environment_of_another_python_than_the_one_named(clone):
    """It is not taken in silence."""
    answer = 'case "$*" in *ensurepip*) exit 1;; *version_info\\[:2\\]*) echo {};; esac'
    program(clone / ".venv" / "bin" / "python", answer.format("3.11"))
    other = program(clone.parent / "bin" / "python3.12", answer.format("3.12"))
    result = install(clone, PYTHON=str(other))
    assert result.returncode == 1
    assert "lacks venv" in result.stdout  # so far it came with the new one


def test_a_debian_whose_python_lacks_venv(clone):
    program(clone.parent / "bin" / "python3", 'case "$*" in *ensurepip*) exit 1;; esac; exit 0')
    result = install(clone)
    assert result.returncode == 1
    assert "lacks venv; as root run: apt-get install python3-venv" in result.stdout
    assert not (clone / ".venv").exists()


def test_no_network_at_the_first_install(clone):
    real = sys.executable
    body = (
        f'case "$*" in *"-m pip"*) echo "ERROR: no route to the index" >&2; exit 1;; esac\nexec {real} "$@"'
    )
    program(clone / ".venv" / "bin" / "python", body)
    for _again in range(2):
        result = install(clone)
        assert result.returncode == 1
        assert "no route to the index" in result.stdout
        assert "check the network and pip's index settings" in result.stdout
        assert not (clone / ".venv" / "installed").exists()


def test_a_clock_that_stands_before_this_version(clone):
    body = f'case "$*" in *"-m pip"*) exit 1;; esac\nexec {sys.executable} "$@"'
    program(clone / ".venv" / "bin" / "python", body)
    (clone.parent / "bin" / "date").unlink()
    program(clone.parent / "bin" / "date", 'case "$1" in +%Y) echo 1970;; *) echo 1970-01-01;; esac')
    result = install(clone)
    assert result.returncode == 1
    assert "the clock of this machine says 1970-01-01: set it" in result.stdout
