"""`cluster.toml` on the disk, changed under a lock, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from protocol.configfile import read_text
from protocol.locks import folder_locked

_NEW_MODE = 0o600


def change_config(path: Path, change: Callable[[str], str]) -> bool:
    """Replace the text by `change` of it; False when that is the same. Raises what `change` raises."""
    path = path.resolve()  # a symbolic link stays one
    with folder_locked(path.parent):
        old = read_text(path)
        new = change(old)
        if new == old:
            return False
        write_whole(path, new, stat.S_IMODE(path.stat().st_mode))
        return True


def create_config(path: Path, text: str) -> bool:
    """Write a file that is not there yet, or empty; False when it is there. Raises `ConfigError`."""
    with folder_locked(path.parent):
        if path.exists() and read_text(path).strip():
            return False
        write_whole(path, text, _NEW_MODE)
        return True


def write_whole(path: Path, text: str, mode: int) -> None:
    """Put a file in its place, whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
