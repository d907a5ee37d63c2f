"""The time of a simulation: what is to happen, in its order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Clock:
    """Owns `now` (seconds) and everything that is planned. Equal times: first planned, first done."""

    def __init__(self) -> None:
        self.now = 0.0
        self._plan: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._plan, (when, next(self._count), action, arguments))

    def run(self, until: float) -> None:
        """Do all that is planned up to then."""
        plan = self._plan
        while plan and plan[0][0] <= until:
            self.now, _number, action, arguments = heapq.heappop(plan)
            action(*arguments)
        self.now = until
