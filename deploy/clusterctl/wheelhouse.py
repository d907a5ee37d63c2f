"""A folder of wheels with all that a node needs, as `scripts/wheelhouse` makes it."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from clusterctl.operations import RefusedError

MANIFEST = "SHA256SUMS"
_OURS = re.compile(r"studiofleet-([^-]+)-.*\.whl")
_PYTHON = re.compile(r"-cp3(\d+)-(?!abi3)[^-]+-[^-]+\.whl$")


@dataclass(frozen=True)
class Wheelhouse:
    """What is sent."""

    folder: Path
    version: str
    """The name of its folder on a node: Studiofleet's version, and the beginning of the hash of it all."""
    manifest: str
    """A line for each wheel, as `shasum -a 256` prints it."""
    python: str | None
    """The version of Python that its wheels are made for, such as `3.13`; None: any."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest.encode()).hexdigest()

    @property
    def sent_bytes(self) -> int:
        """Of all wheels."""
        return sum((self.folder / line.split()[1]).stat().st_size for line in self.manifest.splitlines())

    def packed(self) -> bytes:
        """All of it as a tar."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            text = self.manifest.encode()
            head = tarfile.TarInfo(MANIFEST)
            head.size = len(text)
            archive.addfile(head, io.BytesIO(text))
            for line in self.manifest.splitlines():
                name = line.split()[1]
                archive.add(self.folder / name, name)
        return data.getvalue()


def read_wheelhouse(folder: Path) -> Wheelhouse:
    """Raises `RefusedError` when it is none, and `OSError`."""
    wheels = sorted(folder.glob("*.whl"))
    versions = [match[1] for wheel in wheels if (match := _OURS.fullmatch(wheel.name))]
    if len(versions) != 1:
        found = f"{len(versions)} wheels" if versions else "no wheel"
        raise RefusedError(
            f"{folder} has {found} of Studiofleet; make a folder with all that a node needs, in a checkout:"
            " scripts/wheelhouse FOLDER"
        )
    pythons = {f"3.{match[1]}" for wheel in wheels if (match := _PYTHON.search(wheel.name))}
    if len(pythons) > 1:
        many = " and ".join(sorted(pythons))
        raise RefusedError(f"{folder} has wheels for Python {many}; make it anew: scripts/wheelhouse FOLDER")
    lines = [f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}\n" for wheel in wheels]
    manifest = "".join(lines)
    mark = hashlib.sha256(manifest.encode()).hexdigest()[:8]
    return Wheelhouse(folder, f"{versions[0]}-{mark}", manifest, next(iter(pythons), None))
