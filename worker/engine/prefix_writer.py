"""Writes prompt beginnings to a folder of bounded size, on a thread of its own."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path

from mlx_lm.models.cache import save_prompt_cache

from worker.engine.prefix_files import PARTIAL, Entry, listed, name_of, surplus
from worker.engine.prefix_state import Piece

logger = logging.getLogger(__name__)

_MOST_PENDING = 256 << 20
"""Bytes that wait to be written; more are not taken, as they are memory beyond the cache's own."""


class PrefixWriter:
    """Owns the thread, and the counts of what is in the folder and was done to it.

    The lock keeps a write that is on its way from ending after `clear`; it is never held while writing.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(1, "prefix-disk")
        self._lock = threading.Lock()
        self._epoch = 0
        self._pending = 0
        self._broken = False
        entries, _foreign = listed(folder)
        self.entries = len(entries)
        self.nbytes = sum(entry.nbytes for entry in entries)
        self.writes = self.evictions = 0

    def offer(self, key: bytes, tokens: int, piece: Piece) -> bool:
        """Have an evaluated piece written. False when too much waits already, or writing has failed."""
        nbytes = piece.nbytes
        with self._lock:
            if self._broken or nbytes > self._max_bytes or self._pending + nbytes > _MOST_PENDING:
                return False
            self._pending += nbytes
        self._thread.submit(self._write, self._epoch, key, tokens, piece)
        return True

    def touch(self, names: Sequence[str]) -> None:
        """Note the use of files, in this order."""
        self._thread.submit(self._touch, names)

    def remove(self, entry: Entry) -> None:
        """Remove a file that is of no use."""
        with self._lock, contextlib.suppress(OSError):
            (self._folder / entry.name).unlink()
            self.entries -= 1
            self.nbytes -= entry.nbytes

    def clear(self) -> None:
        """Remove all entries, and do not write those that wait."""
        with self._lock:
            self._epoch += 1
            for entry in listed(self._folder)[0]:
                (self._folder / entry.name).unlink(missing_ok=True)
            self.entries = self.nbytes = 0

    def close(self, patience_s: float) -> None:
        """Write what waits, for so long at most."""
        wait_for([self._thread.submit(lambda: None)], patience_s)
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _write(self, epoch: int, key: bytes, tokens: int, piece: Piece) -> None:
        partial = self._folder / f"{PARTIAL}{os.getpid()}.safetensors"
        try:
            if epoch == self._epoch and not self._broken:  # others may have waited when it broke
                about = {
                    "model": self._folder.name,
                    "key": key.hex(),
                    "layout": " ".join(str(place) for place in piece.layout),
                }
                save_prompt_cache(str(partial), piece.caches, about)
                self._keep(epoch, key, tokens, partial)
        except Exception as error:  # noqa: BLE001 (a full disk, or what MLX makes of one)
            self._broken = True
            partial.unlink(missing_ok=True)
            logger.warning(
                "prefix cache: %s cannot be written, so nothing more is until the next start: %s;"
                " make room there, or set prefix_cache_disk_mb to 0",
                self._folder,
                error,
            )
        finally:
            with self._lock:
                self._pending -= piece.nbytes

    def _keep(self, epoch: int, key: bytes, tokens: int, partial: Path) -> None:
        with partial.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()[:32]
        with self._lock:
            if epoch != self._epoch:
                partial.unlink()
                return
            entries, _foreign = listed(self._folder)
            size = partial.stat().st_size
            gone = surplus(entries, self._max_bytes - size)
            for entry in gone:
                (self._folder / entry.name).unlink(missing_ok=True)
            partial.rename(self._folder / name_of(key, tokens, checksum))
            self.writes += 1
            self.evictions += len(gone)
            self.entries = len(entries) - len(gone) + 1
            self.nbytes = sum(e.nbytes for e in entries) - sum(e.nbytes for e in gone) + size

    def _touch(self, names: Sequence[str]) -> None:
        now = time.time_ns()
        for number, name in enumerate(names):
            try:
                os.utime(self._folder / name, ns=(now, now + number))
            except OSError:
                continue  # removed meanwhile, by this worker or another
