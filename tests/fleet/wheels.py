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

from protocol import __version__

ROOT = Path(__file__).parents[2]


def make_wheelhouse(folder: Path) -> Path:
    """Build both."""
    folder.mkdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    if importlib.util.find_spec("hatchling") is not None:
        pip.append("--no-build-isolation")  # what builds it is here: nothing has to be installed for that
    subprocess.run([*pip, "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    _write_wheel(folder, "requirements_of_tests", "1", [_packages()])
    return folder


def make_light_wheelhouse(folder: Path, *more: str) -> Path:
    """One wheel, which stands for ours and all others: it has no more than the paths to this checkout.

    `more` are lines of Python, run at the start of each process of that version.
    """
    folder.mkdir()
    _write_wheel(folder, "studiofleet", __version__, [str(ROOT), str(ROOT / "deploy"), _packages(), *more])
    return folder


def _write_wheel(folder: Path, name: str, version: str, paths: list[str]) -> None:
    """With those paths for Python, and nothing else."""
    tag, info = f"cp3{sys.version_info[1]}-none-any", f"{name}-{version}.dist-info"
    files = {
        f"{name}.pth": "\n".join([*paths, ""]),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},{_hash(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def _packages() -> str:
    return sysconfig.get_path("purelib")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
