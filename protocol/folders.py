"""Folders that only their owner may enter: the state of a home, its sockets."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from protocol.addresses import AddressError, Home


def private_folder(path: Path, *, follow: bool = True) -> Path:
    """Make the folder with mode 0700, or check the one that is there.

    `follow` says whether a symbolic link may stand for it; not in a shared place such as /tmp.
    Raises `AddressError` when it cannot be made, belongs to another user, or others may enter it:
    somebody else could then have put a socket of their own in its place.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    except OSError as error:
        raise AddressError(
            f"the folder {path} cannot be made: {error.strerror or error}; give {path.parent} to this user"
            " (chown), or point STUDIOFLEET_HOME at another folder"
        ) from error
    if path.is_symlink() and not follow:
        raise AddressError(f"{path} is in the way: it is a symbolic link; remove it")
    if not path.is_dir():
        raise AddressError(f"{path} is in the way: it is no folder; remove it")
    status = path.stat()
    if status.st_uid != os.getuid():
        raise AddressError(f"the folder {path} belongs to another user; remove it, or set STUDIOFLEET_HOME")
    if status.st_mode & 0o077:
        raise AddressError(f"the folder {path} is open to other users; run: chmod 700 {path}")
    return path


def socket_folder(home: Home) -> Path:
    """The home's folder of unix sockets, made or checked."""
    return private_folder(home.sockets, follow=home.sockets == home.run)


def leave_socket_folder(home: Home) -> None:
    """Remove the folder of sockets where it is one beside the home, and nobody uses it any more."""
    if home.sockets != home.run:
        with contextlib.suppress(OSError):
            home.sockets.rmdir()
