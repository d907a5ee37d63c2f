"""The lines of all models with their limits: who may stand in one, for how long, and what else is said."""

from __future__ import annotations

import math
import random

from gateway import queue
from gateway.catalog import Catalog
from gateway.flight import Flight
from protocol.config import QueueConfig
from protocol.errors import ClusterError, ErrorCode


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

    def waiting_since(self) -> dict[str, float]:
        """Of each model that is waited for: when the first in line came."""
        heads = {model: line.head for model, line in self._lines.items()}
        return {model: head.since for model, head in heads.items() if head is not None}

    def head(self, model: str) -> queue.Ticket | None:
        return self._line(model).head

    def enter(self, flight: Flight, now: float) -> None:
        """Let it wait: at the end, or where it stood before.

        Raises `ClusterError` when the line is full, or when no worker can come.
        """
        if self._catalog.is_hopeless(flight.model, now):
            message = f"no worker for {flight.model!r} runs; its operator sees why with: clusterctl status"
            raise ClusterError(ErrorCode.NO_WORKER_AVAILABLE, message)
        if flight.ticket is None:
            flight.ticket = self._ticket(flight, now)
        self._line(flight.model).enter(flight.ticket)

    def exempt(self, flight: Flight, now: float) -> None:
        """It was at a worker once, or belongs to what was: no length or time limit of a line may end it.

        But whoever reads half an answer does not wait for its other half without end.
        """
        expires_at = self._expires_at(flight.model, now) if flight.began else math.inf
        flight.ticket = queue.Ticket(flight.number, flight.request_id, flight.size, expires_at, now)

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

    def _ticket(self, flight: Flight, now: float) -> queue.Ticket:
        limit = queue.max_requests(self._config, self._catalog.slots(flight.model))
        if not self._line(flight.model).has_room(flight.size, limit):
            message = f"all workers for {flight.model!r} are busy and the queue is full; ask again later"
            wait_s = self._retry_after_s(flight.model)
            raise ClusterError(ErrorCode.OVERLOADED, message, retry_after_s=wait_s)
        expires_at = self._expires_at(flight.model, now)
        return queue.Ticket(flight.number, flight.request_id, flight.size, expires_at, now)

    def _expires_at(self, model: str, now: float) -> float:
        limit_s = queue.time_limit_s(self._config, self._catalog.workers_of(model))
        return self._line(model).clock(now) + limit_s

    def _retry_after_s(self, model: str) -> float:
        waiting = len(self._line(model))
        return queue.retry_after_s(waiting, self._catalog.workers_of(model), self._rng)

    def _line(self, model: str) -> queue.Line:
        return self._lines.setdefault(model, queue.Line())
