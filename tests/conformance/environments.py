"""Clients of Python that need packages of their own: an environment each, and their tests run in it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "python"
CACHE = Path("~/.cache/studiofleet/python").expanduser()
UNREACHABLE = "NewConnectionError"
"""What pip says while it tries again to reach a registry, before it says that a package does not exist."""


def environment(*pins: str, beside: Path | None = None) -> Path:
    """The interpreter of an environment with these packages, made at first use and after each change of them.

    What it lacks is taken from the packages in `beside`. Skips the test when the registry of packages
    cannot be reached.
    """
    wanted = "\n".join([sys.version, *pins, str(beside or "")])
    folder = CACHE / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=CACHE))
        subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True, timeout=120)
        pip = [str(fresh / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
        made = subprocess.run([*pip, *pins], capture_output=True, text=True, timeout=600, check=False)
        if made.returncode != 0:
            shutil.rmtree(fresh)
            if UNREACHABLE in made.stderr:
                pytest.skip("the registry of Python packages cannot be reached")
            pytest.fail(made.stderr)
        if beside is not None:
            (own,) = fresh.glob("lib/python*/site-packages")
            (own / "beside.pth").write_text(f"import site; site.addsitedir({str(beside)!r})\n")
        fresh.rename(folder)
    return folder / "bin" / "python"


def passed(python: Path, name: str, folder: Path, *arguments: str, **environ: str) -> int:
    """How many tests of `python/NAME` pass under the pytest of that environment; fails when one does not."""
    shutil.copy(HERE / name, folder)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    ran = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", name, *arguments],
        cwd=folder,
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counted = re.search(r"(\d+) passed", ran.stdout)
    assert counted, ran.stdout
    return int(counted[1])
