"""What follows when memory runs short: first nothing new is taken, then what is in hand gives room. Pure.

A process that takes more than its system has is ended, or brings the machine to a standstill; both
harm every request, and a request that is ended in words only its own.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from worker.engine.base import EngineBusy
from worker.engine.memory import Memory, MemoryReading

SOFT, HARD = 0.85, 0.95
"""Shares of the limit."""
_PAUSE_S = 0.25


class Pressure(IntEnum):
    NONE = 0
    SOFT = 1
    """Nothing new beside what is in hand."""
    HARD = 2
    """What is in hand has to give up memory."""


def pressure(reading: MemoryReading) -> Pressure:
    share = reading.used / reading.limit
    return Pressure.HARD if share >= HARD else Pressure.SOFT if share >= SOFT else Pressure.NONE


class Guard:
    """Owns the last reading. `look` is the engine thread's; the rest may be asked from anywhere."""

    def __init__(self, memory: Memory, drop_prefixes: Callable[[], None], now: Callable[[], float]) -> None:
        """`drop_prefixes` frees what is kept of prompts that were read."""
        self._memory = memory
        self._drop_prefixes = drop_prefixes
        self._now = now
        self._next = now()
        self.reading = memory.read()

    def look(self) -> bool:
        """Whether what is in hand has to give up memory, after giving back what nobody needs.

        Looks four times a second at most, so that what was given up can be freed before the next.
        """
        if self._now() < self._next:
            return False
        self._next = self._now() + _PAUSE_S
        self.reading = self._memory.read()
        if pressure(self.reading) > Pressure.NONE:
            self._give_back()
        if pressure(self.reading) is Pressure.HARD:
            self._drop_prefixes()
            self._give_back()
        return pressure(self.reading) is Pressure.HARD

    def check(self) -> None:
        """Raises `EngineBusy` when nothing new is to be taken."""
        if pressure(self.reading) > Pressure.NONE:
            raise EngineBusy(self.words())

    def words(self) -> str:
        used, limit = self.reading.used >> 20, self.reading.limit >> 20
        return f"memory is short: {used} of {limit} MiB are taken"

    def _give_back(self) -> None:
        self._memory.give_back()
        self.reading = self._memory.read()
