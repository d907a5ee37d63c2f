"""The preparation thread: prompts are made ready one after another, each within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from worker.engine.thread import EngineThread

T = TypeVar("T")

LIMIT_S = 10.0
BYTES_PER_S = 1_000_000
"""A long prompt gets a second more for each so many bytes: it is only long."""


class Preparation:
    """Owns the thread, which nothing can end while a chat template loops. Event loop only."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._thread = EngineThread("preparation", lambda _error: None)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def submit(
        self,
        work: Callable[[], T],
        size: int,
        done: Callable[[Future[T]], None],
        late: Callable[[float], None],
    ) -> None:
        """Run `work`, which has `size` bytes to read, on the thread, and call `done` on the loop; or
        `late`, with the limit, when that is over and it still runs."""
        limit_s = self._limit_s + size / BYTES_PER_S

        def run() -> None:
            if self._closed:
                return
            self._tell(self._begun, limit_s, late)
            future: Future[T] = Future()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 (raised where the result is taken)
                future.set_exception(error)
            self._tell(self._over, future, done)

        self._thread.post(run)

    def close(self) -> None:
        """Forget what is not begun. The thread ends after what it is at."""
        self._closed = True
        self._stop_clock()
        self._thread.end(wait=False)

    def _tell(self, what: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *arguments)

    def _begun(self, limit_s: float, late: Callable[[float], None]) -> None:
        if not self._closed:
            self._timer = self._loop.call_later(limit_s, late, limit_s)

    def _over(self, future: Future[T], done: Callable[[Future[T]], None]) -> None:
        self._stop_clock()
        if not self._closed:
            done(future)

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
