"""The lines of all models with their limits: who may stand in one, for how long, and what else is said."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator
from dataclasses import replace

from gateway import queue
from gateway.catalog import Catalog
from gateway.fairness import weighted
from gateway.flight import Flight
from gateway.needs import Needs
from protocol.api_keys import PRIORITIES
from protocol.config import QueueConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.values import Usage


class WaitingRoom:
    """Owns the lines. A flight that stands in one has its ticket there."""

    def __init__(self, config: QueueConfig, catalog: Catalog, rng: random.Random) -> None:
        self._config = config
        self._catalog = catalog
        self._rng = rng
        self._lines: dict[str, queue.Line] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def models(self) -> list[str]:
        return list(self._lines)

    def counts(self) -> dict[str, int]:
        return {model: len(line) for model, line in self._lines.items()}

    def counts_by_class(self) -> dict[tuple[str, str], int]:
        """How many wait, by model and class."""
        return {
            (model, PRIORITIES[level]): count
            for model, line in self._lines.items()
            for level, count in line.levels().items()
        }

    def waiting_since(self) -> dict[str, float]:
        """Of each model that is waited for: since when."""
        since = {model: line.since for model, line in self._lines.items()}
        return {model: first for model, first in since.items() if first is not None}

    def in_turn(self, model: str, unmet: Collection[Needs]) -> Iterator[queue.Ticket]:
        """See `queue.Line`."""
        return self._line(model).in_turn(unmet)

    def has_rivals(self, flight: Flight) -> bool:
        """Whether anybody waits who may take its place."""
        return self._line(flight.model).has_rivals(flight.needs)

    def enter(self, flight: Flight, now: float) -> list[tuple[str, ClusterError]]:
        """Let it wait: at the end of its key's requests, or where it stood before.

        The requests that have to leave for it, with what to say to them. Raises `ClusterError` when the
        line is full, or when no worker can come.
        """
        if self._catalog.is_hopeless(flight.model, now):
            message = f"no worker for {flight.model!r} runs; its operator sees why with: clusterctl status"
            raise ClusterError(ErrorCode.NO_WORKER_AVAILABLE, message)
        line = self._line(flight.model)
        line.accounts.refund(flight.tenant, flight.charged)
        flight.charged = 0.0
        displaced: list[queue.Ticket] = []
        if flight.ticket is None:
            flight.ticket, displaced = self._ticket(flight, now)
        for ticket in displaced:
            line.leave(ticket)
        line.enter(flight.ticket)
        return [(ticket.request_id, self._full(flight.model)) for ticket in displaced]

    def exempt(self, flight: Flight, now: float, *, returns: bool = True) -> None:
        """It belongs to what was taken already: no length or time limit of a line may end it.

        One that `returns` was at a worker, and is the next. But whoever reads half an answer does not
        wait for its other half without end.
        """
        line = self._line(flight.model)
        if not returns:
            line.arrive(flight.tenant)
        limit_s = self._limit_s(flight)
        flight.ticket = replace(
            self._new(flight, now, limit_s),
            expires_at=line.clock(now) + limit_s if flight.began else math.inf,
            returns=returns,
            counts=False,
        )

    def sent(self, flight: Flight) -> None:
        """A worker has it: its key is charged, once, however often it is sent."""
        if not flight.charged:
            line = self._line(flight.model)
            line.arrive(flight.tenant)
            flight.charged = line.accounts.charge(flight.tenant)

    def settle(self, flight: Flight, usage: Usage | None = None) -> None:
        """It is over: its key has been served what it took."""
        if flight.charged:
            done = usage or flight.usage
            took = weighted(done.prompt_tokens, done.completion_tokens)
            self._line(flight.model).accounts.settle(flight.tenant, flight.charged, took)

    def leave(self, flight: Flight) -> None:
        """Idempotent."""
        if flight.ticket is not None:
            self._line(flight.model).leave(flight.ticket)

    def expired(self, model: str, now: float) -> list[tuple[str, ClusterError]]:
        """Requests that waited too long, with what to say to them.

        While its load moves on, or its turn comes after others', nobody waits too long.
        """
        line = self._line(model)
        line.pass_time(now, stands=self._catalog.is_coming(model, now))
        why = self._catalog.why_not_loaded(model)
        message = f"no worker for {model!r} became free in time{why}; ask again later"
        return [
            (
                ticket.request_id,
                ClusterError(ErrorCode.QUEUE_TIMEOUT, message, retry_after_s=self._retry_after_s(model)),
            )
            for ticket in line.expired(now)
        ]

    def _ticket(self, flight: Flight, now: float) -> tuple[queue.Ticket, list[queue.Ticket]]:
        """A place for it, and who has to leave for it."""
        line = self._line(flight.model)
        ticket = self._new(flight, now, self._limit_s(flight))
        most = queue.max_requests(self._config, self._catalog.slots(flight.model))
        displaced = line.displaced(ticket, most)
        if displaced is None:
            raise self._full(flight.model)
        line.arrive(flight.tenant)
        return ticket, displaced

    def _new(self, flight: Flight, now: float, limit_s: float) -> queue.Ticket:
        clock = self._line(flight.model).clock(now)
        return queue.Ticket(
            flight.number,
            flight.request_id,
            flight.size,
            expires_at=clock + limit_s,
            since=now,
            tenant=flight.tenant,
            level=flight.level,
            hastens_at=clock + limit_s / 2,
            needs=flight.needs,
        )

    def _limit_s(self, flight: Flight) -> float:
        return queue.time_limit_s(self._config, self._catalog.workers_of(flight.model), flight.level)

    def _full(self, model: str) -> ClusterError:
        message = f"all workers for {model!r} are busy and the queue is full; ask again later"
        return ClusterError(ErrorCode.OVERLOADED, message, retry_after_s=self._retry_after_s(model))

    def _retry_after_s(self, model: str) -> float:
        waiting = len(self._line(model))
        return queue.retry_after_s(waiting, self._catalog.workers_of(model), self._rng)

    def _line(self, model: str) -> queue.Line:
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = queue.Line()
        return line
