"""A thread that ends its process when the event loop does not run any more, so that it is started again.

Nobody outside can tell a loop that stands still from a process that has nothing to say; a thread inside can.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from types import TracebackType

from protocol.states import ExitCode

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_WORDS_S = 5.0
"""So long telling may take: the loop may stand in the log itself, with its lock."""


class Standstill:
    """Owns for how long a count has been the same, as looks at it show. Pure."""

    def __init__(self, witnessed_s: float, now: float) -> None:
        """What passes between two looks counts for `witnessed_s` at most: a process that was stopped, or a
        machine that slept, saw nothing of it."""
        self._witnessed_s = witnessed_s
        self._looked_at = now
        self._count = 0
        self._since_s = 0.0

    def look(self, count: int, now: float) -> float:
        """Seconds."""
        passed_s = min(now - self._looked_at, self._witnessed_s)
        self._since_s = self._since_s + passed_s if count == self._count else 0.0
        self._looked_at, self._count = now, count
        return self._since_s


class Watchdog:
    """Watches, as a context, over the loop of the thread that enters it, which has to call `beat` often."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._look_s = min(_LOOK_S, limit_s / 4)
        self._beats = 0
        self._over = threading.Event()

    def beat(self) -> None:
        self._beats += 1

    def __enter__(self) -> Watchdog:
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        standstill = Standstill(2 * self._look_s, time.monotonic())
        while not self._over.wait(self._look_s):
            if standstill.look(self._beats, time.monotonic()) >= self._limit_s:
                teller = threading.Thread(target=self._tell, daemon=True)
                teller.start()
                teller.join(_WORDS_S)
                os._exit(ExitCode.FAULT)

    def _tell(self) -> None:
        where = sys._current_frames().get(self._watched)
        logger.critical(
            "the event loop stood still for %g s, so the process ends, to be started again; it stood at\n%s",
            self._limit_s,
            "".join(traceback.format_stack(where)),
        )
