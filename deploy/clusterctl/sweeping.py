"""Removing what processes leave behind when they have ended, above all those that were killed."""

from __future__ import annotations

import contextlib

from clusterctl.locks import remove_if_free
from protocol.addresses import AddressError, Home


def sweep_process(home: Home, process_id: str) -> None:
    """Remove the files of a process that has ended."""
    for path in (home.run / f"{process_id}.pid", home.http_url(process_id)):
        path.unlink(missing_ok=True)
    with contextlib.suppress(AddressError):
        home.socket(process_id).unlink(missing_ok=True)
    remove_if_free(home.lock(process_id))


def sweep_sockets(home: Home) -> None:
    """Remove the folder of sockets where it is one beside the home, and empty."""
    if home.sockets != home.run:
        with contextlib.suppress(OSError):
            home.sockets.rmdir()
