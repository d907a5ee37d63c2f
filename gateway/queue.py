"""Requests that wait for a place, one line a model: classes, fair between keys, else by age. Pure.

The line stands here and not in the workers, so that whichever worker is free first takes the head; who needs
what no worker with a place has is passed by those who do not.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gateway.fairness import Accounts
from gateway.needs import ANY, Needs
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
    needs: Needs = ANY


class _Lane(NamedTuple):
    """Of whom the requests are that pass one another never."""

    returns: bool
    level: int
    tenant: str
    needs: Needs

    @classmethod
    def of(cls, ticket: Ticket) -> _Lane:
        return cls(ticket.returns, ticket.level, ticket.tenant, ticket.needs)


class Line:
    """The waiting requests of one model."""

    def __init__(self) -> None:
        self.accounts = Accounts()
        self._lanes: dict[_Lane, list[Ticket]] = {}
        """Each in the order in which they came."""
        self._bytes = 0
        self._stood_s = 0.0
        self._seen_at: float | None = None

    def __len__(self) -> int:
        return len(self.all())

    def in_turn(self, unmet: Collection[Needs] = ()) -> Iterator[Ticket]:
        """Who is next, and who after those, by keys: who was at a worker before; else of the first class
        whose key was served least. Without those who need what is in `unmet`, or more.

        `unmet` may grow meanwhile; the line may not change.
        """
        lanes = [_while_met(lane, unmet) for lane in self._lanes.values()]
        for ticket in heapq.merge(*lanes, key=self._rank):
            if not _is_unmet(ticket.needs, unmet):  # of each lane one more was looked at already
                yield ticket

    def has_rivals(self, needs: Needs) -> bool:
        """Whether anybody waits who could take whatever place somebody with these needs could."""
        return any(needs.imply(lane.needs) for lane in self._lanes)

    def _rank(self, ticket: Ticket) -> tuple[int, float, int]:
        if ticket.returns:
            return -1, 0.0, ticket.number
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
        self.accounts.arrive(tenant, (lane.tenant for lane in self._lanes if not lane.returns))

    def enter(self, ticket: Ticket) -> None:
        """Stand where one's number says: who comes back stands before all of its kind that came later."""
        bisect.insort(self._lanes.setdefault(_Lane.of(ticket), []), ticket)
        self._bytes += ticket.size

    def leave(self, ticket: Ticket) -> None:
        """Idempotent."""
        key = _Lane.of(ticket)
        lane = self._lanes.get(key, [])
        if ticket not in lane:
            return
        lane.remove(ticket)
        self._bytes -= ticket.size
        if not lane:
            del self._lanes[key]

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
        return [ticket for lane in self._lanes.values() for ticket in lane]


def _is_unmet(needs: Needs, unmet: Collection[Needs]) -> bool:
    return any(needs.imply(one) for one in unmet)


def _while_met(lane: list[Ticket], unmet: Collection[Needs]) -> Iterator[Ticket]:
    """Of a lane, whose tickets all need the same."""
    for ticket in lane:
        if _is_unmet(ticket.needs, unmet):
            return
        yield ticket


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
