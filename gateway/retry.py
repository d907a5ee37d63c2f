"""Whether a request that lost its worker goes on elsewhere. Pure.

There is no pause before it does: it re-enters the line at its own place, and whichever worker is free
takes it. The budget is Finagle's.
"""

from __future__ import annotations

from collections import deque

from gateway.flight import Flight

ENGINE_RETRIES = 1
"""So often a request is tried again that an engine failed on."""

_WINDOW_S = 10.0
_SHARE = 0.1
_PER_SECOND = 3.0


def may_go_on(flight: Flight, attempts: int, *, takes_over: bool) -> bool:
    """Whether another worker may try it, after an attempt that ended without its end.

    An attempt that brought tokens does not count: what it brought is kept, and the next one is nearer
    to the end. Without take-over, what was shown once cannot be begun anew.
    """
    if flight.began and not (takes_over and flight.can_be_taken_over):
        return False
    return flight.fruitless < attempts


class RetryBudget:
    """How many retries a gateway adds to the work that comes: a tenth of it, and three a second.

    For failures of engines, which a request may carry from one to the next. Requests of a worker that
    was lost are not lost to a budget.
    """

    def __init__(self) -> None:
        self._requests: deque[float] = deque()
        self._retries: deque[float] = deque()

    def request(self, now: float) -> None:
        """A new request came."""
        self._requests.append(now)
        self._forget(now)

    def take(self, now: float) -> bool:
        """Whether one retry more is within it; then it counts."""
        self._forget(now)
        if len(self._retries) >= _SHARE * len(self._requests) + _PER_SECOND * _WINDOW_S:
            return False
        self._retries.append(now)
        return True

    def _forget(self, now: float) -> None:
        for times in (self._requests, self._retries):
            while times and times[0] <= now - _WINDOW_S:
                times.popleft()
