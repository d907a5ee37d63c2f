"""One process a worker id: a lock on a file, held for life."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockHeldError(RuntimeError):
    """Another process has the lock."""


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold the lock, with our pid in the file, which is removed at the end. Raises `LockHeldError`."""
    descriptor = _take(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _take(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise LockHeldError(f"{path} is held by the process {holder}") from None
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # its last holder has removed it meanwhile: a new file has the name, or none


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
