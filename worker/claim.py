"""Memory that a worker holds for its model, written down for all workers of the home.

One file a worker, locked for as long as it counts: what a killed process held is free at once. Who
takes or counts holds the lock of the folder meanwhile, so that two workers never get the same room.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from protocol.addresses import Home
from protocol.locks import folder_locked, is_locked, remove_if_free


class NoRoomError(RuntimeError):
    """The model does not fit beside those that are loaded: both figures, and who holds the memory."""


class Claim:
    """What one worker holds. Its methods block for a moment: not for the event loop."""

    def __init__(self, home: Home, worker_id: str) -> None:
        self._path = home.memory_claim(worker_id)
        self._descriptor: int | None = None
        self.held_mb = 0

    def take(self, wanted_mb: int, budget_mb: int | None) -> None:
        """Hold so much, within the budget if there is one. Raises `NoRoomError`. Idempotent."""
        if self._descriptor is not None:
            return
        with folder_locked(self._path.parent):
            others = self._others()
            if budget_mb is not None and sum(others.values()) + wanted_mb > budget_mb:
                holders = ", ".join(f"{name} {mb} MB" for name, mb in sorted(others.items())) or "nobody"
                raise NoRoomError(
                    f"the model needs {wanted_mb} MB, and {budget_mb - sum(others.values())} MB of"
                    f" {budget_mb} MB are free (held by {holders})"
                )
            self._path.unlink(missing_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self.held_mb = wanted_mb
            with contextlib.suppress(OSError):  # a full disk is no reason not to serve
                os.write(self._descriptor, f"{wanted_mb}\n".encode())

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError), folder_locked(self._path.parent):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None
        self.held_mb = 0

    def _others(self) -> dict[str, int]:
        """What the other workers hold, by id. Files that nobody locks are of killed processes."""
        found: dict[str, int] = {}
        for path in self._path.parent.glob(f"*{self._path.suffix}"):
            if path == self._path:
                continue
            if is_locked(path):
                found[path.stem] = int(path.read_text() or 0)
            else:
                remove_if_free(path)
        return found
