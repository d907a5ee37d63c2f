"""Prompt beginnings in files, which outlive the process. Lives on the engine thread; another one writes.

Workers of one model share a folder: each file is written aside and renamed, its name tells what it
holds, and one that another worker removed is just not there. What is damaged or comes from
somewhere else is removed. A folder belongs to one model; it holds what clients wrote, so it is its
owner's only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from mlx_lm.models.cache import load_prompt_cache

from worker.engine.prefix_files import PARTIAL, Entry, listed
from worker.engine.prefix_index import chained
from worker.engine.prefix_state import Piece, evaluate
from worker.engine.prefix_writer import PrefixWriter

logger = logging.getLogger(__name__)

_STALE_PARTIAL_S = 600.0
_UNUSED_S = 30 * 24 * 3600.0
"""The folder of another model, or of this one before it changed, goes when it was not used for so long."""


class PrefixDisk:
    """What is in one folder, as it was when the folder changed last."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """`folder` is named after the model. Raises `OSError` when it cannot be used."""
        self.max_bytes = max_bytes
        self._folder = folder
        self._entries: dict[bytes, Entry] = {}
        self._lengths: tuple[int, ...] = ()
        self._changed_at = -1
        self._offered: set[bytes] = set()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(folder)
        _tidy(folder)
        self._writer = PrefixWriter(folder, max_bytes)

    def find(self, key: bytes, rest: Sequence[int], more_than: int) -> Entry | None:
        """The entry of the most tokens, but `more_than`, that `rest` begins with, which follows `key`."""
        self._look()
        for tokens in self._lengths:
            if more_than < tokens <= len(rest):
                entry = self._entries.get(chained(key, rest[:tokens]))
                if entry is not None and entry.tokens == tokens:
                    return entry
        return None

    def read(self, entry: Entry) -> Piece | None:
        """What is in it; None when it is gone, or of no use: then it is removed."""
        path = self._folder / entry.name
        try:
            return self._read(path, entry)
        except Exception as error:  # noqa: BLE001 (whatever MLX makes of a damaged file)
            if path.exists():  # another worker may have removed it meanwhile
                logger.warning("prefix cache: %s is of no use and is removed: %s", path, error)
                self._writer.remove(entry)
        self._entries.pop(entry.key, None)
        return None

    def offer(self, key: bytes, tokens: int, piece: Piece) -> None:
        """Have an evaluated piece written, unless it is there."""
        if key not in self._entries and key not in self._offered and self._writer.offer(key, tokens, piece):
            self._offered.add(key)

    def discard(self, key: bytes) -> None:
        """Remove an entry, if there is one."""
        self._look()
        if (entry := self._entries.pop(key, None)) is not None:
            self._writer.remove(entry)

    def use(self, keys: Sequence[bytes]) -> None:
        """Note the use of entries; each follows the one before it, and has to go before it."""
        names = [self._entries[key].name for key in reversed(keys) if key in self._entries]
        if names:
            self._writer.touch(names)

    def clear(self) -> None:
        """Remove all entries, also those that wait to be written."""
        self._writer.clear()
        self._offered.clear()
        self._look()

    def close(self, patience_s: float) -> None:
        """Write what waits, for so long at most."""
        self._writer.close(patience_s)

    def stats(self) -> dict[str, int]:
        return {
            "prefix_cache_disk_entries": self._writer.entries,
            "prefix_cache_disk_bytes": self._writer.nbytes,
            "prefix_cache_disk_max_bytes": self.max_bytes,
            "prefix_cache_disk_writes": self._writer.writes,
            "prefix_cache_disk_evictions": self._writer.evictions,
        }

    def _read(self, path: Path, entry: Entry) -> Piece:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not digest.startswith(entry.checksum):
            raise ValueError("its checksum is wrong")
        caches, about = load_prompt_cache(str(path), return_metadata=True)
        if (about["model"], about["key"]) != (self._folder.name, entry.key.hex()):
            raise ValueError("it is of another model")
        piece = Piece(caches, tuple(int(place) for place in about["layout"].split()))
        evaluate([piece])
        return piece

    def _look(self) -> None:
        """Read the folder again where it has changed."""
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at == self._changed_at:
                return
            entries, _foreign = listed(self._folder)
        except OSError:  # somebody removed the folder
            changed_at, entries = -1, []
        self._changed_at = changed_at
        self._entries = {entry.key: entry for entry in entries}
        self._lengths = tuple(sorted({entry.tokens for entry in entries}, reverse=True))
        self._offered -= self._entries.keys()


def _tidy(folder: Path) -> None:
    """Remove what is no entry, and the folders of other models that are used no more."""
    now = time.time()
    _entries, foreign = listed(folder)
    for path in foreign:
        if not (path.name.startswith(PARTIAL) and now - path.stat().st_mtime < _STALE_PARTIAL_S):
            logger.warning("prefix cache: %s is no entry and is removed", path)
            path.unlink(missing_ok=True)
    for other in folder.parent.iterdir():
        if other != folder and other.is_dir() and now - other.stat().st_mtime > _UNUSED_S:
            logger.info("prefix cache: %s was not used for long and is removed", other)
            shutil.rmtree(other, ignore_errors=True)
