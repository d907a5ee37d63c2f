"""A wheelhouse for nodes on this machine: our own wheel, as it is built, and a second one with a path.

The second stands for all requirements: its path file names the packages of the environment that runs the
tests. So nodes have a real installation of ours, in seconds rather than minutes; that the pinned wheels are
complete is not tried here.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make_wheelhouse(folder: Path) -> Path:
    """Build both."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    if importlib.util.find_spec("hatchling") is not None:
        pip.append("--no-build-isolation")  # what builds it is here: nothing has to be installed for that
    subprocess.run([*pip, "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    _write_stand_in(folder)
    return folder


def _write_stand_in(folder: Path) -> None:
    name = "requirements_of_tests-1"
    tag = f"cp3{sys.version_info[1]}-none-any"
    files = {
        "requirements_of_tests.pth": sysconfig.get_path("purelib") + "\n",
        f"{name}.dist-info/METADATA": "Metadata-Version: 2.1\nName: requirements-of-tests\nVersion: 1\n",
        f"{name}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},{_hash(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{name}.dist-info/RECORD"] = record + f"{name}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
