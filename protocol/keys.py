"""The admin key of a home: whoever can read its file may drain workers and reload the configuration."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from protocol.addresses import Home
from protocol.folders import private_folder

_BYTES = 32


class KeyFileError(ValueError):
    """The key file cannot be used: why, and what to do."""


def ensure_admin_key(home: Home) -> bool:
    """Make the key where there is none; False when it is there. Whole or not at all, for its owner alone.

    Raises `AddressError` and `OSError`.
    """
    path = home.admin_key
    private_folder(path.parent)
    if path.exists():
        return False
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(_BYTES) + "\n")
        os.link(aside, path)  # unlike a rename, it does not replace what somebody else just made
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def read_admin_key(home: Home) -> str:
    """The key. Raises `KeyFileError`."""
    return _read(home.admin_key)


def _read(path: Path) -> str:
    try:
        status = path.stat()
        key = path.read_text(encoding="ascii").strip()
    except FileNotFoundError as error:
        raise KeyFileError(f"there is no {path}; make it with: clusterctl up") from error
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path} cannot be read: {error}") from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise KeyFileError(f"{path} is open to other users; run: chmod 600 {path}")
    if len(key) < _BYTES:
        raise KeyFileError(f"{path} holds no key of {_BYTES} characters; remove it and run: clusterctl up")
    return key
