"""The life of requests: choice, rejection, queue, retry, loss. Pure but for its two ports.

Events come in with `now`; what follows goes out through the `Transport` (to workers) and each
request's `Outlet`. Called from the event loop only, never from within a port.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable

import msgspec

from gateway.affinity import beginning_of
from gateway.breaker import Breakers
from gateway.catalog import Catalog
from gateway.deadlines import Deadlines, Missed
from gateway.flight import Flight, Outlet, Placed, Terms, Transport
from gateway.flights import Flights
from gateway.lives import Lives
from gateway.needs import Needs
from gateway.orders import Orders
from gateway.placement import Choice, Placement, best
from gateway.registry import Registry, WorkerView
from gateway.retry import ENGINE_RETRIES, RetryBudget, may_go_on
from gateway.tally import Tally
from gateway.trial import POISON_DEATHS, Trial
from gateway.waiting import WaitingRoom
from protocol.config import ClusterConfig
from protocol.errors import WORKER_DIED, ClusterError, ErrorCode, worker_code
from protocol.messages import (
    Accepted,
    Deltas,
    Failed,
    Finished,
    Rejected,
    Started,
    Work,
)

logger = logging.getLogger(__name__)

_ANY = Terms()
_MOST_PASSED = 16
"""So many that wait for a worker of their own are passed at once."""
_ELSEWHERE = frozenset({ErrorCode.WORKER_LOST, ErrorCode.SHUTTING_DOWN})
"""Failures that are the worker's state, not the request's fault."""


class Dispatcher:
    """Owns all requests of a gateway and the lines in which they wait."""

    def __init__(
        self,
        config: ClusterConfig,
        registry: Registry,
        catalog: Catalog,
        transport: Transport,
        rng: random.Random,
        *,
        choice: Choice = best,
    ) -> None:
        self._config = config
        self._registry = registry
        self._catalog = catalog
        self.breakers = Breakers(rng)
        self._budget = RetryBudget()
        self._placement = Placement(config, registry, self.breakers, transport, rng, choice=choice)
        self._deadlines = Deadlines(config, registry)
        self.orders = Orders(config.residency, registry, catalog, transport)
        self.waiting = WaitingRoom(config.queue, catalog, rng)
        self.flights = Flights()
        self._count = 0
        self._messages = 0
        self.tally = Tally()
        self.lives = Lives()

    # --- what clients do ---

    def submit(
        self,
        request: Work,
        outlet: Outlet,
        size: int,
        now: float,
        *,
        terms: Terms = _ANY,
        further: bool = False,
    ) -> None:
        """Send the request or let it wait. Raises `ClusterError` when neither is possible.

        One for a certain worker passes the line. A `further` answer to what was taken already is not refused
        because the line is long.
        """
        model = self._catalog.named(request.model or None)
        self._catalog.check_connected(terms.only, model)
        self.orders.admit(model, now, waits=terms.waits)
        self._count += 1
        deadline = now + (math.inf if request.time_left_s is None else request.time_left_s)
        request = msgspec.structs.replace(request, model=model)
        life = self.lives.begin(request.request_id, model, now)
        life.note(now, "came", bytes=size, priority=request.priority)
        held = size if further else size + sum(map(len, terms.parts))  # further ones share the pictures
        trial = terms.trial or Trial()
        flight = Flight(self._count, request, model, outlet, held, deadline, life, trial)
        flight.affinity = beginning_of(request, size)
        flight.only, flight.parts = terms.only, terms.parts
        self._budget.request(now)
        self.flights.add(flight)
        if further or terms.only:
            self.waiting.exempt(flight, now, returns=False)
        try:
            if self.waiting.has_rivals(flight) and not terms.only:
                self._wait(flight, now)
                self._pump(model, now)
            else:
                self._place_or_wait(flight, now)
        except ClusterError as error:
            self.flights.take_out(request.request_id)
            life.end(now, "failed", code=error.code)
            raise

    def cancel(self, request_id: str, now: float) -> None:
        """The client is gone: free everything. Idempotent, and harmless after the end."""
        flight = self.flights.take_out(request_id)
        if flight is None:
            return
        flight.life.end(now, "left", tokens=len(flight.emitted))
        self._withdraw(flight)
        self.waiting.settle(flight)
        self._pump(flight.model, now)

    # --- what workers say ---

    def deltas(self, connection: bytes, message: Deltas, now: float) -> None:
        get = self.flights.get
        self._messages = number = self._messages + 1
        for delta in message.deltas:
            flight = get(delta.request_id)
            if flight is not None and flight.attempt == delta.attempt and flight.connection == connection:
                flight.take(delta, number)
                flight.outlet.delta(delta, now)

    def answer(
        self, worker: WorkerView, message: Accepted | Rejected | Started | Finished | Failed, now: float
    ) -> None:
        """A word about one request; one about an attempt that was given up only tells the load."""
        if not isinstance(message, Started):
            self._registry.loaded(worker.connection, message.load)
        flight = self.flights.attempt(worker.connection, message.request_id, message.attempt)
        if flight is not None:
            self._placement.confirm(flight)
            self._apply(flight, worker, message, now)
        if isinstance(message, Finished | Failed):
            self._pump(worker.card.name, now)

    def _apply(
        self,
        flight: Flight,
        worker: WorkerView,
        message: Accepted | Rejected | Started | Finished | Failed,
        now: float,
    ) -> None:
        match message:
            case Accepted():
                pass
            case Started():
                flight.prompt_tokens = message.prompt_tokens
                flight.life.began(now, worker, message)
                self.tally.begun(flight, found=self._placement.begun(flight, worker, message))
                flight.outlet.started(worker, message)
            case Rejected():
                self._rejected(flight, worker, message, now)
            case Finished():
                flight.trial.acquit(flight)
                self.flights.take_out(flight.request_id)
                flight.life.finished(now, worker, message)
                self.waiting.settle(flight, message.usage)
                self._registry.served(worker.connection, now - flight.sent_at, now, message.timings)
                self.breakers.succeeded(worker, now)
                flight.outlet.finished(worker, message)
            case Failed():
                self._failed(flight, worker, message, now)

    def _rejected(self, flight: Flight, worker: WorkerView, message: Rejected, now: float) -> None:
        if flight.progressed:
            # Its text cannot be taken back, and another worker would begin anew behind it.
            self._withdraw(flight)
            broken = f"the worker {worker.worker_id} rejected a request that it had begun to answer"
            self._registry.failed(worker.connection, broken)
            self.breakers.failed(worker, now)
            self._end(flight, ClusterError(ErrorCode.INTERNAL_ERROR, broken), now)
            return
        logger.debug("request %s: worker %s is %s", flight.request_id, worker.worker_id, message.reason)
        flight.life.note(now, "rejected", worker.worker_id, reason=message.reason)
        self._registry.rejected(worker.connection, now + self._config.routing.busy_pause_s)
        self.breakers.unsent(worker)
        flight.connection = b""
        flight.tried.add(worker.worker_id)
        self._guarded(flight, now, self._place_or_wait)

    def _failed(self, flight: Flight, worker: WorkerView, message: Failed, now: float) -> None:
        code = worker_code(message.code)
        if code in (ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL_ERROR):
            self._registry.failed(worker.connection, message.message)
            self.breakers.failed(worker, now)
            flight.engine_failures += 1
        else:
            self.breakers.unsent(worker)
        died = code is ErrorCode.WORKER_LOST and message.reason == WORKER_DIED
        reason = None if died else message.reason
        error = ClusterError(code, message.message, param=message.param, reason=reason)
        if code is ErrorCode.CONTEXT_LENGTH_EXCEEDED and error.param is None:
            error.param = "messages"
        if died:
            self._after_death(flight, worker, error, now)
        elif code in _ELSEWHERE or (code is ErrorCode.ENGINE_FAILED and self._may_fail_again(flight, now)):
            self._retry(flight, worker, error, now)
        else:
            self._end(flight, error, now)

    def _may_fail_again(self, flight: Flight, now: float) -> bool:
        """An engine that fails after the first token most likely fails there again."""
        return not flight.began and flight.engine_failures <= ENGINE_RETRIES and self._budget.take(now)

    def lost(self, view: WorkerView, now: float, *, died: bool, why: str) -> None:
        """A worker that left the registry: its requests go elsewhere, or end."""
        if died:
            self.breakers.lost(view, now)
        else:
            self.breakers.unsent(view)
        for flight in self.flights.at(view.connection):
            # A cut network loses many at once: over it, who never said to have a request did not die of it.
            # On this machine nothing is cut, but a process can die before its word of the request is out.
            had_it = flight.confirmed or not view.key
            move = self._after_death if died and had_it else self._retry
            error = ClusterError(
                ErrorCode.WORKER_LOST, f"the worker {view.worker_id} was lost ({why}); ask again"
            )
            move(flight, view, error, now)
        self._pump(view.card.name, now)

    def _after_death(self, flight: Flight, worker: WorkerView, error: ClusterError, now: float) -> None:
        """Its worker died, or hangs; perhaps of it."""
        silent = now - worker.heard_at >= self._config.heartbeat.suspect_s
        deaths = flight.trial.died(flight, worker, now, silent=silent)
        if deaths < POISON_DEATHS:
            self._retry(flight, worker, error, now)
            return
        why = f"{deaths} workers ended while they prepared this request; no other gets it: change it"
        self._end(flight, ClusterError(ErrorCode.POISON_REQUEST, why), now)

    # --- what time does ---

    def tick(self, now: float) -> None:
        """Time limits, another look at the lines, and which models are to be loaded for them."""
        self._placement.abort_again()
        for flight in self.flights:
            missed = self._deadlines.missed(flight, now)
            if missed is not None:
                self._late(flight, missed, now)
        for model in self.waiting.models():
            for request_id, error in self.waiting.expired(model, now):
                self._end_in_line(self.flights[request_id], error, now)
            self._pump(model, now)
        self.orders.give(self.waiting.waiting_since(), now)

    def _late(self, flight: Flight, missed: Missed, now: float) -> None:
        worker, error = missed.worker, missed.error
        if worker is None:
            self._withdraw(flight)
            self._end(flight, error, now)
            return
        logger.warning("request %s: worker %s %s", flight.request_id, worker.worker_id, missed.what)
        self._placement.abort(flight.connection, flight.request_id)
        if missed.hangs:
            self.breakers.lost(worker, now)
            self._after_death(flight, worker, error, now)
        else:
            self._placement.confirm(flight)
            self.breakers.failed(worker, now)
            self._retry(flight, worker, error, now)

    def fail_all(self, error: ClusterError, now: float) -> None:
        """End every request: the gateway stops."""
        for flight in self.flights:
            self._withdraw(flight)
            self._end(flight, error, now)

    # --- moves ---

    def _place(self, flight: Flight, now: float) -> Placed:
        placed = self._placement.place(flight, now)
        if placed is Placed.SENT:
            self.waiting.sent(flight)
        return placed

    def _place_or_wait(self, flight: Flight, now: float) -> None:
        if self._place(flight, now) is not Placed.SENT:
            self._wait(flight, now)

    def _wait(self, flight: Flight, now: float) -> None:
        flight.tried.clear()
        flight.life.note(now, "waits", ahead=self.waiting.counts().get(flight.model, 0))
        for request_id, error in self.waiting.enter(flight, now):
            self._end(self.flights[request_id], error, now)

    def _retry(self, flight: Flight, worker: WorkerView, error: ClusterError, now: float) -> None:
        """On to another worker, which begins anew, or goes on after the tokens that were shown; or end it."""
        flight.trial.look()
        flight.connection = b""
        flight.fruitless = 0 if flight.progressed else flight.fruitless + 1
        takes_over = self._config.takeover.enabled and self._catalog.takes_over(flight.model)
        if not may_go_on(flight, self._config.routing.attempts, takes_over=takes_over):
            self._end(flight, error, now)
            return
        logger.info(
            "request %s: %s, after worker %s: %s",
            flight.request_id,
            f"goes on after {len(flight.emitted)} tokens" if flight.began else "again",
            worker.worker_id,
            error,
        )
        what = "goes_on" if flight.began else "again"
        flight.life.note(now, what, worker.worker_id, code=error.code, tokens=len(flight.emitted))
        (self.tally.takeovers if flight.began else self.tally.retries)[error.code] += 1
        flight.attempt += 1
        flight.resumed = len(flight.emitted)
        self.waiting.exempt(flight, now)
        flight.tried = {worker.worker_id}
        flight.setback = error
        self._guarded(flight, now, self._place_or_wait)

    def _guarded(self, flight: Flight, now: float, move: Callable[[Flight, float], None]) -> None:
        try:
            move(flight, now)
        except ClusterError as error:
            self._end_in_line(flight, error, now)

    def _end_in_line(self, flight: Flight, error: ClusterError, now: float) -> None:
        """Whose answer has begun is told what broke it, not that nobody was there to go on."""
        self._end(flight, flight.setback if flight.began and flight.setback else error, now)

    def _end(self, flight: Flight, error: ClusterError, now: float) -> None:
        flight.life.end(now, "failed", code=error.code)
        self.flights.take_out(flight.request_id)
        self.waiting.leave(flight)
        self.waiting.settle(flight)
        flight.outlet.failed(error)

    def _withdraw(self, flight: Flight) -> None:
        """Take the request back, wherever it is."""
        self.waiting.leave(flight)
        self._placement.take_back(flight)

    def pump(self, now: float) -> None:
        """A worker has news: perhaps it has a place."""
        for model in self.waiting.models():
            self._pump(model, now)

    def _pump(self, model: str, now: float) -> None:
        while self._place_next(model, now):
            pass

    def _place_next(self, model: str, now: float) -> bool:
        """Send the next in line, or the first behind it for whom a worker is free where none is for it."""
        unmet: set[Needs] = set()
        patient = 0
        for ticket in self.waiting.in_turn(model, unmet):
            flight = self.flights[ticket.request_id]
            if self._catalog.is_hopeless(model, now):
                self.waiting.leave(flight)
                self._guarded(flight, now, self._wait)
                return True
            placed = self._place(flight, now)
            if placed is Placed.SENT:
                self.waiting.leave(flight)
                return True
            flight.tried.clear()
            if placed is Placed.NOWHERE:
                unmet.add(ticket.needs.alone)
                continue
            if placed is Placed.HELD:
                unmet.add(ticket.needs)
                continue
            patient += 1
            if patient == _MOST_PASSED:
                return False
        return False
