"""Requests that wait for a place, one line a model: first come, first served. Pure.

The line stands here and not in the workers, so that whichever worker is free first takes the head.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.registry import FIRST_SERVICE_S, WorkerView
from protocol.config import QueueConfig

MAX_BYTES = 256 * 1024 * 1024
"""Of all request bodies in one line."""

_MAX_REQUESTS = 1024
_MIN_REQUESTS = 16


@dataclass(frozen=True, order=True)
class Ticket:
    """A place in the line. Lower numbers came earlier."""

    number: int
    request_id: str
    size: int
    expires_at: float
    """On the line's own clock."""
    since: float = 0.0
    """When it came."""


class Line:
    """The waiting requests of one model, in the order in which they came."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []
        self._bytes = 0
        self._stood_s = 0.0
        self._seen_at: float | None = None

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def head(self) -> Ticket | None:
        return self._tickets[0] if self._tickets else None

    def has_room(self, size: int, max_requests: int) -> bool:
        return len(self._tickets) < max_requests and self._bytes + size <= MAX_BYTES

    def enter(self, ticket: Ticket) -> None:
        """Stand where one's number says: who comes back stands before all that came later."""
        bisect.insort(self._tickets, ticket)
        self._bytes += ticket.size

    def leave(self, ticket: Ticket) -> None:
        """Idempotent."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)
            self._bytes -= ticket.size

    def pass_time(self, now: float, *, stands: bool) -> None:
        """Since the last call, the time limits of the waiting ran on, or stood still."""
        if stands and self._seen_at is not None:
            self._stood_s += now - self._seen_at
        self._seen_at = now

    def clock(self, now: float) -> float:
        """The time by which tickets expire."""
        return now - self._stood_s

    def expired(self, now: float) -> list[Ticket]:
        return [ticket for ticket in self._tickets if ticket.expires_at <= self.clock(now)]

    def all(self) -> list[Ticket]:
        return list(self._tickets)


def max_requests(config: QueueConfig, slots: float) -> int:
    """How many may wait: two rounds of the model's slots, of which this gateway has that share."""
    if config.max_requests is not None:
        return config.max_requests
    return min(_MAX_REQUESTS, max(_MIN_REQUESTS, math.ceil(2 * slots)))


def time_limit_s(config: QueueConfig, workers: Iterable[WorkerView]) -> float:
    """How long a request may wait."""
    slowest = max((view.service_s for view in workers), default=FIRST_SERVICE_S)
    return max(config.timeout_s, 2 * slowest)


def retry_after_s(waiting: int, workers: Iterable[WorkerView], rng: random.Random) -> float:
    """When another try may succeed: the time in which the line empties, 1 to 30 s, spread by a fifth."""
    per_second = sum(view.capacity.max_num_seqs / view.service_s for view in workers if view.connection)
    wait_s = (waiting + 1) / per_second if per_second else FIRST_SERVICE_S
    return min(30.0, max(1.0, wait_s)) * rng.uniform(0.8, 1.2)
