"""What must hold in every run, checked while it goes on and at its end.

Told of everything that happens, it only keeps notes and the list of what was wrong.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

from gateway.affinity import LONGEST_PATIENCE_S
from gateway.registry import FIRST_SERVICE_S
from scripts.simulation.traffic import Request

DEAD_S = 10.5
"""A worker that died gets nothing later: silence is noticed after 10 s, and looked for ten times a second."""
_BUDGET_WINDOW_S, _BUDGET_SHARE, _BUDGET_FLOOR = 10.0, 0.1, 30.0
_MOST_VIOLATIONS = 20
_PASSING = 1000
"""So many requests at most leave while one is passed."""
GATEWAY_LOST = "gateway_lost"
LEFT = "left"


@dataclass(eq=False, slots=True)
class Record:
    """What became of one request."""

    request: Request
    request_id: str
    asked_at: float = math.nan
    """When it came, on the run's own clock."""
    sends: int = 0
    entered_at: float = math.nan
    """When it first got a slot of an engine."""
    first_at: float = math.nan
    """When its first token was there."""
    sent_at: float = math.nan
    """When it first left for a worker."""
    ended_at: float = math.nan
    outcome: str = ""
    """`done`, or the code of the error that its client got."""
    ends: int = 0
    tokens: int = 0
    cached: int = 0
    failed_at: float = math.nan
    """When its last attempt ended by a failed engine."""


@dataclass
class _Budget:
    came: list[float] = field(default_factory=list)
    retried: list[float] = field(default_factory=list)
    """When the attempts failed that were tried again."""


class Audit:
    """Owns the notes. One a run."""

    def __init__(self, queue_timeout_s: float) -> None:
        self.violations: list[str] = []
        self.rejected = 0
        self._queue_timeout_s = queue_timeout_s
        self._longest_s = FIRST_SERVICE_S
        self._first_sends: dict[str, list[tuple[float, int]]] = {}
        self._budgets: dict[str, _Budget] = {}
        self._dead_since: dict[str, float] = {}
        self._at_fault: set[str] = set()

    def wrong(self, what: str) -> None:
        if len(self.violations) < _MOST_VIOLATIONS:
            self.violations.append(what)

    # --- requests ---

    def came(self, gateway: str, now: float) -> None:
        self._budgets.setdefault(gateway, _Budget()).came.append(now)

    def sent(self, record: Record, gateway: str, worker: str, resumed: int, now: float) -> None:
        """It leaves a gateway for a worker; `resumed` tokens are there already."""
        if math.isnan(record.sent_at):
            record.sent_at = now
            self._check_order(record, gateway, now)
            self._check_wait(record, now)
        record.sends += 1
        if resumed != record.tokens:
            self.wrong(f"{record.request_id} begins again at {resumed} of {record.tokens} tokens")
        if not math.isnan(record.failed_at):
            self._budgets[gateway].retried.append(record.failed_at)
            record.failed_at = math.nan
        if now > self._dead_since.get(worker, math.inf) + DEAD_S:
            self.wrong(f"{record.request_id} goes to {worker}, which is dead for longer than {DEAD_S} s")

    def told(self, record: Record, token_ids: tuple[int, ...]) -> None:
        """Its client gets these tokens, which are numbered."""
        if token_ids != tuple(range(record.tokens, record.tokens + len(token_ids))):
            self.wrong(f"{record.request_id}: tokens {token_ids[:3]} come after {record.tokens}")
        record.tokens += len(token_ids)

    def ended(self, record: Record, outcome: str, now: float) -> None:
        record.ends += 1
        record.outcome, record.ended_at = outcome, now
        if record.ends > 1:
            self.wrong(f"{record.request_id} ends {record.ends} times")
        if outcome == "done":
            self._longest_s = max(self._longest_s, now - record.sent_at)
            if record.tokens != record.request.answer:
                self.wrong(f"{record.request_id} has {record.tokens} of {record.request.answer} tokens")
        if math.isnan(record.sent_at):
            self._check_wait(record, now)

    def _check_order(self, record: Record, gateway: str, now: float) -> None:
        """First come, first served, as clients of a simulation have one key; but one whose beginning a worker
        may know waits for that worker for a while, and may be passed meanwhile."""
        number = record.request.number
        sends = self._first_sends.setdefault(gateway, [])
        later = next(((at, other) for at, other in reversed(sends[-_PASSING:]) if other > number), None)
        sends.append((now, number))
        may_be_passed_s = LONGEST_PATIENCE_S if record.request.key else 0.0
        if later is not None and later[0] - record.asked_at > may_be_passed_s:
            self.wrong(f"{record.request_id} leaves {gateway} after request {later[1]}, which came later")

    def _check_wait(self, record: Record, now: float) -> None:
        limit_s = max(self._queue_timeout_s, 2 * self._longest_s) + 0.5
        if now - record.asked_at > limit_s:
            self.wrong(f"{record.request_id} waited {now - record.asked_at:.1f} s, more than {limit_s:.1f}")

    def check_budgets(self) -> None:
        """At the end: in no ten seconds were more engines' failures tried again than the budget allows."""
        for gateway, budget in self._budgets.items():
            budget.retried.sort()
            for number, at in enumerate(budget.retried):
                since = at - _BUDGET_WINDOW_S
                retried = number + 1 - bisect.bisect_right(budget.retried, since)
                came = bisect.bisect_right(budget.came, at) - bisect.bisect_left(budget.came, since)
                if retried > _BUDGET_SHARE * came + _BUDGET_FLOOR + 1:
                    self.wrong(f"{gateway} retries {retried} of {came} requests in 10 s")

    # --- workers ---

    def holds(self, worker: str, held: int, limit: int) -> None:
        """It took one more request."""
        if held > limit:
            self.wrong(f"{worker} has {held} requests in hand and room for {limit}")

    def lives(self, worker: str) -> None:
        self._dead_since.pop(worker, None)

    def dies(self, worker: str, now: float) -> None:
        self._dead_since[worker] = now

    def at_fault(self, worker: str) -> None:
        """It was made to fail: breakers may open."""
        self._at_fault.add(worker)

    def breaker_open(self, gateway: str, worker: str) -> None:
        if worker not in self._at_fault:
            self.wrong(f"{gateway} avoids {worker}, which only was busy")

    def drained(self, worker: str, held: int) -> None:
        """It exits after a drain."""
        if held:
            self.wrong(f"{worker} exits with {held} requests in hand")

    # --- gateways ---

    def queued(self, gateway: str, waiting: int, limit: int) -> None:
        """So many wait that a line may refuse: whom a worker sent back is not refused."""
        if waiting > limit:
            self.wrong(f"{waiting} wait in {gateway}, which has room for {limit}")

    def at_rest(self, gateway: str, what: str, count: int) -> None:
        """At the end, when nothing is asked any more."""
        if count:
            self.wrong(f"{gateway} is left with {count} {what}")

    def sees(self, gateway: str, worker: str, seen: int | None, held: int | None) -> None:
        """At the end: what the gateway believes of a worker. None: that it is away."""
        if seen != held:
            self.wrong(f"{gateway} sees {seen} requests at {worker}, which has {held}")

    def unended(self, records: list[Record]) -> None:
        for record in records:
            if record.ends == 0:
                self.wrong(f"{record.request_id} never ends")
