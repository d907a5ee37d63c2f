"""Workers that fail are left alone for a while. Pure.

Only the worker's own faults count: a failed engine, a broken answer, silence. A rejection, and what
is wrong with a request, never do. The rules are those of Envoy's outlier detection and Finagle's
failure accrual: failures in a row, or the share of them in a window; pauses that double; one probe;
nobody is left out where most would be.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.registry import WorkerView

_IN_A_ROW = 3
_WINDOW_S = 30.0
_LEAST = 10
_SHARE = 0.5
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


class BreakerState(StrEnum):
    CLOSED = "closed"
    """Requests go there."""
    OPEN = "open"
    """None do."""
    HALF_OPEN = "half_open"
    """The pause is over: one may, and shows whether it works again."""


@dataclass
class _Breaker:
    incarnation: str
    ends: deque[tuple[float, bool]] = field(default_factory=deque)
    """When requests ended there, and whether they failed."""
    in_a_row: int = 0
    opened: int = 0
    """So often since it last worked."""
    until: float = 0.0
    probing: bool = False


class Breakers:
    """One breaker a worker, of this gateway. A new process of a worker begins anew."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._breakers: dict[str, _Breaker] = {}

    def state(self, view: WorkerView, now: float) -> BreakerState:
        breaker = self._breakers.get(view.worker_id)
        if breaker is None or breaker.incarnation != view.incarnation or not breaker.opened:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < breaker.until else BreakerState.HALF_OPEN

    def sound(self, views: Sequence[WorkerView], now: float) -> list[WorkerView]:
        """Those of the replicas that may be asked: all, where more than half would be left out."""
        closed = [view for view in views if self._may_be_asked(view, now)]
        return closed if 2 * (len(views) - len(closed)) <= len(views) else list(views)

    def sent(self, view: WorkerView, now: float) -> None:
        """A request goes there: it is the probe, if one was due."""
        if self.state(view, now) is BreakerState.HALF_OPEN:
            self._breakers[view.worker_id].probing = True

    def unsent(self, view: WorkerView) -> None:
        """A request ended there without saying anything of the worker: rejected, or taken back."""
        breaker = self._breakers.get(view.worker_id)
        if breaker is not None:
            breaker.probing = False

    def succeeded(self, view: WorkerView, now: float) -> None:
        breaker = self._of(view)
        breaker.in_a_row = breaker.opened = 0
        breaker.probing = False
        self._note(breaker, now, failed=False)

    def failed(self, view: WorkerView, now: float) -> None:
        breaker = self._of(view)
        breaker.in_a_row += 1
        self._note(breaker, now, failed=True)
        failures = sum(failed for _, failed in breaker.ends)
        half = len(breaker.ends) >= _LEAST and failures >= _SHARE * len(breaker.ends)
        if breaker.in_a_row >= _IN_A_ROW or half or breaker.probing:
            self._open(breaker, now)

    def lost(self, view: WorkerView, now: float) -> None:
        """Its connection broke: opens at once."""
        self._open(self._of(view), now)

    def forget(self, keep: Sequence[str]) -> None:
        """Drop those of workers that nobody knows any more."""
        for worker_id in self._breakers.keys() - set(keep):
            del self._breakers[worker_id]

    def _may_be_asked(self, view: WorkerView, now: float) -> bool:
        state = self.state(view, now)
        if state is BreakerState.HALF_OPEN:
            return not self._breakers[view.worker_id].probing
        return state is BreakerState.CLOSED

    def _open(self, breaker: _Breaker, now: float) -> None:
        if breaker.opened and now < breaker.until:
            return  # what was under way when it opened
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * float(2 ** min(breaker.opened, 10)))
        breaker.opened += 1
        breaker.until = now + pause_s * self._rng.uniform(0.8, 1.2)
        breaker.probing = False
        breaker.in_a_row = 0
        breaker.ends.clear()

    def _of(self, view: WorkerView) -> _Breaker:
        breaker = self._breakers.get(view.worker_id)
        if breaker is None or breaker.incarnation != view.incarnation:
            breaker = self._breakers[view.worker_id] = _Breaker(view.incarnation)
        return breaker

    @staticmethod
    def _note(breaker: _Breaker, now: float, *, failed: bool) -> None:
        breaker.ends.append((now, failed))
        while breaker.ends[0][0] <= now - _WINDOW_S:
            breaker.ends.popleft()
