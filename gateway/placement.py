"""Requests on their way to a worker and back from it: choice, sending, abort. Pure but for the transport."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gateway import affinity, routing
from gateway.affinity import Beginning
from gateway.breaker import Breakers
from gateway.finds import Finds
from gateway.flight import Flight, Placed, Sent, Transport
from gateway.lives import considered
from gateway.registry import Registry, WorkerView
from gateway.stall import hangs
from protocol import spans
from protocol.config import ClusterConfig
from protocol.messages import Abort, Generate, Started

logger = logging.getLogger(__name__)

_LEAST_GAIN = 0.5
"""A beginning that most workers know is no reason to go to certain ones."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is known of a request when a worker is chosen for it."""

    beginning: Beginning | None = None
    waited_s: float = 0.0
    gain: float = 1.0
    """The share of such requests whose beginning is found at its own workers and not elsewhere."""


Choice = Callable[[Wanted, Sequence[WorkerView], Sequence[WorkerView], random.Random], WorkerView | None]
"""Of what is known of a request, all sound replicas, and those of them that may be asked now: the one to
ask; None: rather wait."""


def best(
    wanted: Wanted, sound: Sequence[WorkerView], free: Sequence[WorkerView], rng: random.Random
) -> WorkerView | None:
    """One whose cache may know the beginning; without one, the cheapest of a few."""
    beginning = wanted.beginning
    if beginning is None or wanted.gain < _LEAST_GAIN:
        return routing.cheapest(free, rng)
    order = affinity.ranked(beginning.key, sound)
    return affinity.best(beginning, order, free, waited_s=wanted.waited_s, gain=wanted.gain)


class Placement:
    """Owns the aborts that could not be said yet."""

    def __init__(
        self,
        config: ClusterConfig,
        registry: Registry,
        breakers: Breakers,
        transport: Transport,
        rng: random.Random,
        *,
        choice: Choice = best,
    ) -> None:
        self._choice = choice
        self._routing = config.routing
        self._suspect_s = config.heartbeat.suspect_s
        self._registry = registry
        self._breakers = breakers
        self._transport = transport
        self._rng = rng
        self._finds = Finds()
        self._unsent_aborts: list[tuple[bytes, str]] = []

    def place(self, flight: Flight, now: float) -> Placed:
        """Send the request to the best worker that takes it off our hands."""
        while len(flight.tried) < self._routing.busy_tries:
            sound = self._sound(flight, now)
            free = routing.candidates(sound, now, tried=flight.tried, suspect_s=self._suspect_s)
            if not free:
                return Placed.NOWHERE
            free = flight.trial.admitted(free)
            if not free:
                return Placed.HELD
            worker = self._choice(self._wanted(flight, now), sound, free, self._rng)
            if worker is None:
                return Placed.WAITS
            span_id = spans.new_span_id() if flight.request.trace_context else ""
            if self._send(flight, worker, span_id, now):
                facts = considered(sound, free, flight.tried)
                if span_id:
                    facts["span"] = span_id
                flight.life.note(now, "sent", worker.worker_id, attempt=flight.attempt, **facts)
                flight.tried.add(worker.worker_id)
                return Placed.SENT
            flight.tried.add(worker.worker_id)
        return Placed.NOWHERE

    def _sound(self, flight: Flight, now: float) -> list[WorkerView]:
        """Workers that could serve it, whether or not they have a place."""
        stall_s, needs = self._routing.stall_s, flight.needs
        serving = routing.replicas(self._registry.views(), flight.model)
        ready = [view for view in serving if needs.met_by(view) and not hangs(view, stall_s)]
        return self._breakers.sound(ready, now)

    def _wanted(self, flight: Flight, now: float) -> Wanted:
        """Who was at a worker does not wait for a certain one, nor anybody where nothing was found yet."""
        if flight.affinity is None:
            return Wanted()
        came = now if flight.ticket is None else flight.ticket.since
        patient = not flight.attempt and self._finds.any_of(flight.model)
        gain = 1.0 - self._finds.elsewhere(flight.affinity.key)
        return Wanted(flight.affinity, now - came if patient else math.inf, gain)

    def begun(self, flight: Flight, worker: WorkerView, message: Started) -> bool | None:
        """Learn whether its beginning was found where it was sent; None where it has none to look for."""
        if flight.affinity is None or flight.attempt:
            return None
        key = flight.affinity.key
        serving = routing.replicas(self._registry.views(), flight.model)
        found = 0 < message.prompt_tokens <= 2 * message.cached_tokens
        self._finds.learn(flight.model, key, home=affinity.is_home(key, worker, serving), found=found)
        return found

    def _send(self, flight: Flight, worker: WorkerView, span_id: str, now: float) -> bool:
        left = None if math.isinf(flight.deadline) else max(0.0, flight.deadline - now)
        message = msgspec.structs.replace(flight.request, attempt=flight.attempt, time_left_s=left)
        if isinstance(message, Generate):
            message = msgspec.structs.replace(message, resume_token_ids=tuple(flight.emitted))
        if span_id:
            context = spans.within(message.trace_context, span_id)
            message = msgspec.structs.replace(message, trace_context=context)
        sent = self._transport.send(worker.connection, message, flight.parts)
        if sent is Sent.OK:
            flight.connection = worker.connection
            flight.confirmed = False
            flight.sent_at = now
            flight.missed_since = math.inf
            self._registry.sent(worker.connection, now)
            self._breakers.sent(worker, now)
            logger.debug("request %s: sent to worker %s", flight.request_id, worker.worker_id)
            return True
        # A full pipe is a busy worker. A lost one is found by the next ping; it is left alone till then.
        self._registry.pause(worker.connection, now + self._routing.busy_pause_s)
        return False

    def take_back(self, flight: Flight) -> None:
        """Have its worker, if it is at one, end it."""
        if not flight.connection:
            return
        self.abort(flight.connection, flight.request_id)
        worker = self._registry.at(flight.connection)
        if worker is not None:
            self._breakers.unsent(worker)
        if flight.confirmed:
            self._registry.released(flight.connection)
        self.confirm(flight)

    def confirm(self, flight: Flight) -> None:
        """Its worker has answered, or is not asked any more."""
        if not flight.confirmed:
            flight.confirmed = True
            self._registry.confirmed(flight.connection)

    def abort(self, connection: bytes, request_id: str) -> None:
        if self._transport.send(connection, Abort(request_id=request_id)) is Sent.BUSY:
            self._unsent_aborts.append((connection, request_id))

    def abort_again(self) -> None:
        """Say the aborts for which there was no room."""
        self._unsent_aborts, aborts = [], self._unsent_aborts
        for connection, request_id in aborts:
            self.abort(connection, request_id)
