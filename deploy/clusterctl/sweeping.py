"""Removing what processes leave behind when they have ended, above all those that were killed."""

from __future__ import annotations

import contextlib

from clusterctl.locks import remove_if_free
from protocol.addresses import AddressError, Home


def sweep_process(home: Home, process_id: str) -> None:
    """Remove the files of a process that has ended. What cannot be removed says nothing of what runs."""
    paths = [home.run / f"{process_id}.pid", home.http_url(process_id)]
    with contextlib.suppress(AddressError):
        paths.append(home.socket(process_id))
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        remove_if_free(home.lock(process_id))


def sweep_sockets(home: Home) -> None:
    """Remove the folder of sockets where it is one beside the home, and empty."""
    if home.sockets != home.run:
        with contextlib.suppress(OSError):
            home.sockets.rmdir()
