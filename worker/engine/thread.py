"""The engine thread: everything about MLX happens on it, since MLX's streams belong to threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EngineThread:
    """Runs what it is given, in order, and steps in between as long as a step says there is more."""

    def __init__(self, name: str, on_fault: Callable[[Exception], None]) -> None:
        """`on_fault` is told, on the thread, of an exception that nobody waits for."""
        self._on_fault = on_fault
        self._step: Callable[[], bool] | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._busy_since: float | None = None
        # A daemon, so that a hung engine cannot keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread and wait for its result. Not for the event loop."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                done.set_exception(error)

        self._work.put(run)
        return done.result()

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` on the thread before its next step."""
        self._work.put(work)

    @property
    def busy_s(self) -> float:
        """How long it has been at what it is doing now, a step or other work. From any thread."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def drive(self, step: Callable[[], bool] | None) -> None:
        """What to do between the work: called as long as it returns True, and after each work."""
        self._step = step

    def end(self, *, wait: bool = True) -> None:
        """Finish the work given so far, and end. To wait for it is not for the event loop."""
        self._work.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        more = False
        while True:
            try:
                work = self._work.get(block=not more)
            except Empty:
                more = self._guarded(self._step)
                continue
            if work is None:
                return
            self._guarded(work)
            more = self._step is not None

    def _guarded(self, work: Callable[[], T] | None) -> bool:
        self._busy_since = time.monotonic()
        try:
            return bool(work is not None and work())
        except Exception as error:
            logger.exception("the engine thread met a fault")
            self._on_fault(error)
            return False
        finally:
            self._busy_since = None
