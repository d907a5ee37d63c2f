"""Requests that wait for a place, one line a model: classes, fair between keys, else by age. Pure.

The line stands here and not in the workers, so that whichever worker is free first takes the head.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.fairness import Accounts
from gateway.registry import FIRST_SERVICE_S, WorkerView
from protocol.api_keys import PRIORITIES
from protocol.config import QueueConfig

MAX_BYTES = 256 * 1024 * 1024
"""Of all request bodies in one line."""
BATCH = PRIORITIES.index("batch")

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
    tenant: str = ""
    """The name of its key."""
    level: int = 1
    """Its class; 0 comes first."""
    hastens_at: float = math.inf
    """On the line's own clock: from then on it counts as of the first class."""
    returns: bool = False
    """It was at a worker, and stands before all that were not."""
    counts: bool = True
    """To the length of the line."""


class Line:
    """The waiting requests of one model."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self._returning: list[Ticket] = []
        self._lanes: dict[tuple[int, str], list[Ticket]] = {}
        """Of each class and key, in the order in which they came."""
        self._bytes = 0
        self._stood_s = 0.0
        self._seen_at: float | None = None

    def __len__(self) -> int:
        return len(self.all())

    @property
    def head(self) -> Ticket | None:
        """Who is next: who was at a worker before; else of the first class whose key was served least."""
        if self._returning:
            return self._returning[0]
        return min((lane[0] for lane in self._lanes.values()), key=self._rank, default=None)

    def first(self, count: int) -> list[Ticket]:
        """The head and those behind it, who follow by keys: at most so many."""
        lanes = sorted(self._lanes.values(), key=lambda lane: self._rank(lane[0]))
        return list(itertools.islice(itertools.chain(self._returning, *lanes), count))

    def _rank(self, ticket: Ticket) -> tuple[int, float, int]:
        hastens = self._seen_at is not None and ticket.hastens_at <= self.clock(self._seen_at)
        return 0 if hastens else ticket.level, self.accounts.standing(ticket.tenant), ticket.number

    @property
    def since(self) -> float | None:
        """When the one came that waits longest."""
        return min((ticket.since for ticket in self.all()), default=None)

    def levels(self) -> Counter[int]:
        """How many wait, by class."""
        return Counter(ticket.level for ticket in self.all())

    def displaced(self, newcomer: Ticket, max_requests: int) -> list[Ticket] | None:
        """Who has to leave so that the newcomer may stand in the line; None: it may not.

        That is the newest request, of the last class, of the key that holds most.
        """
        there = [ticket for ticket in self.all() if ticket.counts]
        size = self._bytes + newcomer.size
        leaving: list[Ticket] = []
        while (too_large := size > MAX_BYTES) or len(there) >= max_requests:
            held: Counter[str] = Counter()
            for ticket in (*there, newcomer):
                held[ticket.tenant] += ticket.size if too_large else 1
            most = max(held.values())
            greedy = (ticket for ticket in (*there, newcomer) if held[ticket.tenant] == most)
            victim = max(greedy, key=lambda ticket: (ticket.level, ticket.number))
            if victim is newcomer:
                return None
            there.remove(victim)
            size -= victim.size
            leaving.append(victim)
        return leaving

    def arrive(self, tenant: str) -> None:
        """A first request of that key is about to enter or to be sent, or one more."""
        self.accounts.arrive(tenant, (tenant for _level, tenant in self._lanes))

    def enter(self, ticket: Ticket) -> None:
        """Stand where one's number says: who comes back stands before all of its kind that came later."""
        bisect.insort(self._lane(ticket), ticket)
        self._bytes += ticket.size

    def leave(self, ticket: Ticket) -> None:
        """Idempotent."""
        lane = self._lane(ticket)
        if ticket in lane:
            lane.remove(ticket)
            self._bytes -= ticket.size
        if not lane and not ticket.returns:
            del self._lanes[ticket.level, ticket.tenant]

    def _lane(self, ticket: Ticket) -> list[Ticket]:
        if ticket.returns:
            return self._returning
        return self._lanes.setdefault((ticket.level, ticket.tenant), [])

    def pass_time(self, now: float, *, stands: bool) -> None:
        """Since the last call, the time limits of the waiting ran on, or stood still."""
        if stands and self._seen_at is not None:
            self._stood_s += now - self._seen_at
        self._seen_at = now

    def clock(self, now: float) -> float:
        """The time by which tickets expire."""
        return now - self._stood_s

    def expired(self, now: float) -> list[Ticket]:
        return [ticket for ticket in self.all() if ticket.expires_at <= self.clock(now)]

    def all(self) -> list[Ticket]:
        """In no order that means anything."""
        return [*self._returning, *(ticket for lane in self._lanes.values() for ticket in lane)]


def max_requests(config: QueueConfig, slots: float) -> int:
    """How many may wait: two rounds of the model's slots, of which this gateway has that share."""
    if config.max_requests is not None:
        return config.max_requests
    return min(_MAX_REQUESTS, max(_MIN_REQUESTS, math.ceil(2 * slots)))


def time_limit_s(config: QueueConfig, workers: Iterable[WorkerView], level: int = 0) -> float:
    """How long a request of that class may wait."""
    slowest = max((view.service_s for view in workers), default=FIRST_SERVICE_S)
    return max(config.batch_timeout_s if level == BATCH else config.timeout_s, 2 * slowest)


def retry_after_s(waiting: int, workers: Iterable[WorkerView], rng: random.Random) -> float:
    """When another try may succeed: the time in which the line empties, 1 to 30 s, spread by a fifth."""
    per_second = sum(view.capacity.max_num_seqs / view.service_s for view in workers if view.connection)
    wait_s = (waiting + 1) / per_second if per_second else FIRST_SERVICE_S
    return min(30.0, max(1.0, wait_s)) * rng.uniform(0.8, 1.2)
