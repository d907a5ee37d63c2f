"""The manifest of a model folder: size and SHA-256 of each file as it arrived, to find later damage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from clusterctl.configfile import write_whole

NAME = ".studiofleet.json"
_BLOCK = 1 << 20
_MODE = 0o644

Told = Callable[[int], None]
"""Told of so many more bytes; it may raise to stop the work."""


class FileEntry(msgspec.Struct, frozen=True):
    """One file as it should be."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Of a folder; names are relative, with `/`."""

    files: dict[str, FileEntry]
    source: str = ""
    """Where it came from: `hub ORG/NAME`, or empty."""
    revision: str | None = None
    damaged: tuple[str, ...] = ()
    """Files that were found damaged by the last verification."""

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())


def model_files(folder: Path) -> list[str]:
    """What belongs to the model: all files, except hidden ones and those in hidden folders."""
    found = []
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            found.append(relative.as_posix())
    return sorted(found)


def model_bytes(folder: Path) -> int:
    """Of those files."""
    return sum((folder / name).stat().st_size for name in model_files(folder))


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none, or none that can be read: verifying writes it anew."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_whole(folder / NAME, encoded(manifest).decode(), _MODE)


def encoded(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def entry_of(path: Path, told: Told) -> FileEntry:
    """Reads the whole file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
            told(len(block))
    return FileEntry(size, digest.hexdigest())


def git_hash(path: Path) -> str:
    """The name that git gives to the content: the hub tells it of small files."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def taken(folder: Path, told: Told, source: str = "", revision: str | None = None) -> Manifest:
    """The manifest of the files that are there."""
    files = {name: entry_of(folder / name, told) for name in model_files(folder)}
    return Manifest(files=files, source=source, revision=revision)


def wrong_sizes(folder: Path, manifest: Manifest) -> dict[str, str]:
    """What is missing or of another size, without reading it: why, by the file's name."""
    found = {}
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            found[name] = "is missing"
        elif (size := path.stat().st_size) != entry.size:
            found[name] = f"has {size} bytes and should have {entry.size}"
    return found


def damages(folder: Path, manifest: Manifest, told: Told) -> dict[str, str]:
    """What is not as the manifest says, by the file's name. Reads everything."""
    found = wrong_sizes(folder, manifest)
    for name in _others(manifest.files, found):
        if entry_of(folder / name, told).sha256 != manifest.files[name].sha256:
            found[name] = "has other content than when it arrived"
    return found


def _others(names: Iterable[str], found: dict[str, str]) -> list[str]:
    return [name for name in names if name not in found]
