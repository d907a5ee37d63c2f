"""Runs on a node, where it is sent as text with the wheels behind it: the standard library is all there is.

Makes `PREFIX/versions/VERSION` from the wheels: beside its place first, and only whole does it get there.
One that is there and is damaged is made anew.
"""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO

_FOLDERS = ("versions", "etc", "etc/keys", "state", "log", "models", "home")
_LINKS = (("keys", "../etc/keys"), ("logs", "../log"), ("cluster.toml", "../etc/cluster.toml"))
"""`state` is the home of the clusterctl there."""
_IMPORTS = "import clusterctl.cli, gateway, protocol, worker.server"


def install(prefix: Path, version: str, digest: str, packed: IO[bytes]) -> None:
    """Raises `OSError`, `ValueError` and `CalledProcessError`; then nothing is left of it."""
    os.umask(0o077)
    for folder in _FOLDERS:
        (prefix / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    (prefix / "etc" / "studiofleet-node").write_text("Made by clusterctl node add.\n")
    for name, target in _LINKS:
        link = prefix / "state" / name
        if not link.is_symlink():
            link.symlink_to(target)
    final = prefix / "versions" / version
    if damage(final):
        for left in final.parent.glob(".new-*"):  # of an installation that was cut off
            shutil.rmtree(left)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=final.parent))
        try:
            _unpack(packed, fresh / "wheels", digest)
            _make(fresh, final)
            if final.is_dir():
                os.rename(final, fresh / "damaged")
            os.rename(fresh, final)
            shutil.rmtree(final / "damaged", ignore_errors=True)
        except BaseException:
            shutil.rmtree(fresh)
            raise


def damage(final: Path) -> str:
    """What is wrong with an installed version; empty where it is whole. Sizes are looked at, not contents."""
    if not final.is_dir():
        return f"{final} is not there"
    for record in sorted(final.glob("lib/python3*/site-packages/*.dist-info/RECORD")):
        packages = record.parent.parent
        with record.open(newline="") as lines:
            for name, _hash, size in csv.reader(lines):
                if name.startswith("..") or not size:  # scripts were changed, and caches come and go
                    continue
                file = packages / name
                if not file.is_file() or file.stat().st_size != int(size):
                    return f"{file} is not as it was installed"
    try:
        _run(str(final / "bin" / "python"), "-P", "-c", _IMPORTS)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _unpack(packed: IO[bytes], folder: Path, digest: str) -> None:
    """Raises `ValueError` when it is not what was sent."""
    folder.mkdir()
    with tarfile.open(fileobj=packed, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is None or "/" in member.name:
                raise ValueError(f"{member.name!r} is no wheel; try again")
            with content, (folder / member.name).open("wb") as file:
                shutil.copyfileobj(content, file)
    manifest = (folder / "SHA256SUMS").read_bytes()
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise ValueError("the list of wheels is not the one that was sent; try again")
    for line in manifest.decode().splitlines():
        wanted, name = line.split()
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != wanted:
            raise ValueError(f"{name} is not as it was sent; try again")


def _make(fresh: Path, final: Path) -> None:
    wheels = sorted(map(str, (fresh / "wheels").glob("*.whl")))
    _run(sys.executable, "-I", "-m", "venv", str(fresh))
    pip = [str(fresh / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet"]
    _run(*pip, "--disable-pip-version-check", "--no-index", "--no-deps", "--no-cache-dir", *wheels)
    _run(str(fresh / "bin" / "python"), "-P", "-c", _IMPORTS)
    shutil.rmtree(fresh / "wheels")
    for script in (fresh / "bin").iterdir():  # they name the interpreter by its path
        if script.is_file() and not script.is_symlink():
            text = script.read_bytes()
            script.write_bytes(text.replace(os.fsencode(fresh), os.fsencode(final)))


def _run(*command: str) -> None:
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise ValueError(said[-1] if said else f"{command[0]} ended with {result.returncode}")


def main(prefix: str, version: str, digest: str) -> None:
    """The program; the wheels come by stdin. Without a digest it only tells whether that version is whole."""
    if not digest:
        sys.exit(damage(Path(prefix, "versions", version)) or 0)
    try:
        install(Path(prefix), version, digest, sys.stdin.buffer)
    except (OSError, ValueError, tarfile.TarError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[2:])
