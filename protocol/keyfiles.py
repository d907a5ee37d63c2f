"""Files with secrets: made whole or not at all, for their owner alone, and read only while that is so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from protocol.folders import private_folder


class KeyFileError(ValueError):
    """A file of keys cannot be used: why, and what to do."""


def create_secret(path: Path, text: str) -> bool:
    """Make the file where there is none; False when it is there. Raises `AddressError` and `OSError`."""
    private_folder(path.parent)
    if path.exists():
        return False
    aside = _written(path, text)
    try:
        os.link(aside, path)  # unlike a rename, it does not replace what somebody else just made
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def write_private(path: Path, text: str) -> None:
    """Put a file of that text in the place of what is there. Raises `AddressError` and `OSError`."""
    private_folder(path.parent)
    os.replace(_written(path, text), path)


def _written(path: Path, text: str) -> Path:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def read_secret(path: Path, cure: str) -> str:
    """What is in the file. Raises `KeyFileError`; `cure` says what makes one that is missing."""
    refuse_open_file(path, cure)
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} cannot be read: {error}") from error


def refuse_open_file(path: Path, cure: str) -> None:
    """Raises `KeyFileError` unless the file is there, for its owner alone."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError as error:
        raise KeyFileError(f"there is no {path}; {cure}") from error
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error}") from error
    if mode & 0o077:
        raise KeyFileError(f"{path} is open to other users; run: chmod 600 {path}")
