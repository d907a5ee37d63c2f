"""Removing what processes leave behind when they have ended, above all those that were killed."""

from __future__ import annotations

import contextlib
from collections.abc import Set as AbstractSet

from protocol.addresses import AddressError, Home
from protocol.locks import remove_if_free


def sweep_process(home: Home, process_id: str) -> None:
    """Remove the files of a process that has ended. What cannot be removed says nothing of what runs."""
    paths = [home.run / f"{process_id}.pid", home.http_url(process_id)]
    paths += [home.down_mark(process_id), home.attempts(process_id)]
    with contextlib.suppress(AddressError):
        paths.append(home.socket(process_id))
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
    for lock in (home.lock(process_id), home.memory_claim(process_id)):
        with contextlib.suppress(OSError):
            remove_if_free(lock)


def set_down_marks(home: Home, down: AbstractSet[str]) -> bool:
    """Have exactly these workers marked as down, for the gateways; whether that changed anything."""
    before = _down_marks(home)
    for worker_id in down ^ before:
        mark = home.down_mark(worker_id)
        with contextlib.suppress(OSError):  # without a mark, requests wait in vain: no reason to end
            if worker_id in down:
                mark.touch(mode=0o600)
            else:
                mark.unlink()
    return _down_marks(home) != before


def _down_marks(home: Home) -> set[str]:
    return {path.stem for path in home.run.glob("*.down")}
