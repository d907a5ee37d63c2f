"""The files of kept beginnings: how much may be in them, their names, and which of them have to go.

A name tells what is in the file: its key (all its tokens and those before), how many tokens it holds
itself, and the checksum of its bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"^([0-9a-f]{32})-(\d{1,9})-([0-9a-f]{32})\.safetensors$")
PARTIAL = ".partial-"
"""Begins the names of files that are being written."""


@dataclass(frozen=True)
class PrefixOptions:
    """How much is kept, and beneath which folder."""

    max_bytes: int
    """0 switches it off."""
    max_disk_bytes: int = 0
    folder: Path = Path("prefix-cache")


@dataclass(frozen=True)
class Entry:
    """A file of that name. `used` is its time stamp: when it was written or used last."""

    name: str
    key: bytes
    tokens: int
    checksum: str
    nbytes: int
    used: float


def name_of(key: bytes, tokens: int, checksum: str) -> str:
    return f"{key.hex()}-{tokens}-{checksum}.safetensors"


def parsed(name: str, nbytes: int, used: float) -> Entry | None:
    """None for a name of another form."""
    match = _NAME.match(name)
    if match is None:
        return None
    return Entry(name, bytes.fromhex(match[1]), int(match[2]), match[3], nbytes, used)


def listed(folder: Path) -> tuple[list[Entry], list[Path]]:
    """The entries of a folder, and its files that are none. Files that vanish meanwhile are left out."""
    entries: list[Entry] = []
    foreign: list[Path] = []
    with os.scandir(folder) as files:
        for file in files:
            try:
                status = file.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if (entry := parsed(file.name, status.st_size, status.st_mtime)) is not None:
                entries.append(entry)
            elif not file.is_dir(follow_symlinks=False):
                foreign.append(Path(file.path))
    return entries, foreign


def surplus(entries: Iterable[Entry], max_bytes: int) -> list[Entry]:
    """Those to remove, used longest ago first, so that the others have at most `max_bytes`."""
    oldest = sorted(entries, key=lambda entry: entry.used)
    total = sum(entry.nbytes for entry in oldest)
    removed = []
    for entry in oldest:
        if total <= max_bytes:
            break
        removed.append(entry)
        total -= entry.nbytes
    return removed
