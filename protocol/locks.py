"""Exclusive locks between processes, for as long as a block or a process lasts. `kill -9` frees them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_TRY_S = 0.05


class LockHeldError(RuntimeError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, patience_s: float = 0.3, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file, which has our pid in it and exists only while it is held.

    `waiting` is called before each further try; it may raise. Raises `LockHeldError` with the
    holder's pid when it is still held after `patience_s` seconds; some patience outlasts those
    who only look whether it is held.
    """
    deadline = time.monotonic() + patience_s
    while (descriptor := _try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise LockHeldError(f"{path} is held by the process {holder(path)}")
        waiting()
        time.sleep(_TRY_S)
    try:
        with contextlib.suppress(OSError):  # a full disk: the lock holds without
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last holder may have removed the file between the open and the lock.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def holder(path: Path) -> str:
    """The pid that is written in the lock file."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")[:20].strip() or "unknown"
    return "unknown"


def remove_if_free(path: Path) -> None:
    """Remove a lock file that nobody holds: its holder was killed."""
    if not path.exists():
        return
    descriptor = _try_lock(path)
    if descriptor is not None:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file at this moment."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # several may look at once
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def folder_locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, waiting for it. It leaves no file behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
