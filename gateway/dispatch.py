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

from gateway.catalog import Catalog
from gateway.flight import Flight, Outlet, Transport
from gateway.orders import Orders
from gateway.placement import Placement
from gateway.registry import Registry, WorkerView
from gateway.waiting import WaitingRoom
from protocol.config import ClusterConfig
from protocol.errors import ClusterError, ErrorCode, worker_code
from protocol.messages import (
    Accepted,
    Deltas,
    Failed,
    Finished,
    Generate,
    Rejected,
    Started,
)

logger = logging.getLogger(__name__)

_POISON_DEATHS = 2
_ENGINE_RETRIES = 1
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
    ) -> None:
        self._config = config
        self._registry = registry
        self._catalog = catalog
        self._transport = transport
        self._placement = Placement(config, registry, transport, rng)
        self.orders = Orders(config.residency, registry, catalog, transport)
        self._waiting = WaitingRoom(config.queue, catalog, rng)
        self._flights: dict[str, Flight] = {}
        self._count = 0

    # --- what clients do ---

    def submit(
        self,
        request: Generate,
        outlet: Outlet,
        size: int,
        now: float,
        *,
        waits: bool | None = None,
        further: bool = False,
    ) -> None:
        """Send the request or let it wait. Raises `ClusterError` when neither is possible.

        `waits` says whether it waits for a model that has to be loaded first; None: as configured.
        A `further` answer to what was taken already is not refused because the line is long.
        """
        model = self._catalog.named(request.model or None)
        self.orders.admit(model, now, waits=waits)
        self._count += 1
        deadline = now + (math.inf if request.time_left_s is None else request.time_left_s)
        request = msgspec.structs.replace(request, model=model)
        flight = Flight(self._count, request, model, outlet, size, deadline)
        self._flights[request.request_id] = flight
        if further:
            self._waiting.exempt(flight, now)
        try:
            if self._waiting.head(model) is not None or not self._placement.place(flight, now):
                self._wait(flight, now)
        except ClusterError:
            del self._flights[request.request_id]
            raise

    def cancel(self, request_id: str, now: float) -> None:
        """The client is gone: free everything. Idempotent, and harmless after the end."""
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return
        self._withdraw(flight)
        self._pump(flight.model, now)

    @property
    def running(self) -> int:
        """Requests at a worker."""
        return len(self._flights) - self.queued

    @property
    def queued(self) -> int:
        return sum(self._waiting.counts().values())

    def queued_by_model(self) -> dict[str, int]:
        return self._waiting.counts()

    def requests_at(self, connection: bytes) -> list[str]:
        return [flight.request_id for flight in self._flights.values() if flight.connection == connection]

    def running_by_model(self) -> dict[str, int]:
        counts = dict.fromkeys(self._waiting.models(), 0)
        for flight in self._flights.values():
            counts[flight.model] = counts.get(flight.model, 0) + bool(flight.connection)
        return counts

    # --- what workers say ---

    def deltas(self, connection: bytes, message: Deltas) -> None:
        for delta in message.deltas:
            flight = self._flights.get(delta.request_id)
            if flight is not None and flight.connection == connection and flight.attempt == delta.attempt:
                flight.began = True
                flight.outlet.delta(delta)

    def answer(
        self, worker: WorkerView, message: Accepted | Rejected | Started | Finished | Failed, now: float
    ) -> None:
        """A word about one request; one about an attempt that was given up only tells the load."""
        if not isinstance(message, Started):
            self._registry.loaded(worker.connection, message.load)
        flight = self._flights.get(message.request_id)
        if flight is not None and (flight.connection, flight.attempt) == (worker.connection, message.attempt):
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
                flight.outlet.started(worker, message)
            case Rejected():
                self._rejected(flight, worker, message, now)
            case Finished():
                del self._flights[flight.request_id]
                self._registry.served(worker.connection, now - flight.sent_at, now)
                flight.outlet.finished(worker, message)
            case Failed():
                self._failed(flight, worker, message, now)

    def _rejected(self, flight: Flight, worker: WorkerView, message: Rejected, now: float) -> None:
        if flight.began:
            # Its text cannot be taken back, and another worker would begin anew behind it.
            self._withdraw(flight)
            broken = f"the worker {worker.worker_id} rejected a request that it had begun to answer"
            self._registry.failed(worker.connection, broken)
            self._end(flight, ClusterError(ErrorCode.INTERNAL_ERROR, broken))
            return
        logger.debug("request %s: worker %s is %s", flight.request_id, worker.worker_id, message.reason)
        self._registry.rejected(worker.connection, now + self._config.routing.busy_pause_s)
        flight.connection = b""
        flight.tried.add(worker.worker_id)
        self._guarded(flight, now, self._place_or_wait)

    def _failed(self, flight: Flight, worker: WorkerView, message: Failed, now: float) -> None:
        code = worker_code(message.code)
        if code in (ErrorCode.ENGINE_FAILED, ErrorCode.INTERNAL_ERROR):
            self._registry.failed(worker.connection, message.message)
            flight.engine_failures += 1
        error = ClusterError(code, message.message, param=message.param, reason=message.reason)
        if code is ErrorCode.CONTEXT_LENGTH_EXCEEDED and error.param is None:
            error.param = "messages"
        again = code in _ELSEWHERE or (
            code is ErrorCode.ENGINE_FAILED and flight.engine_failures <= _ENGINE_RETRIES
        )
        if again:
            self._retry(flight, worker, error, now)
        else:
            self._end(flight, error)

    def lost(self, view: WorkerView, now: float, *, died: bool, why: str) -> None:
        """A worker that left the registry: its requests go elsewhere, or end."""
        for flight in [f for f in self._flights.values() if f.connection == view.connection]:
            flight.deaths += died and not flight.began
            error = ClusterError(
                ErrorCode.WORKER_LOST, f"the worker {view.worker_id} was lost ({why}); ask again"
            )
            if flight.deaths >= _POISON_DEATHS:
                error.message = f"{flight.deaths} workers ended while they prepared this request"
                self._end(flight, error)
            else:
                self._retry(flight, view, error, now)
        self._pump(view.card.name, now)

    # --- what time does ---

    def tick(self, now: float) -> None:
        """Time limits, another look at the lines, and which models are to be loaded for them."""
        self._placement.abort_again()
        for flight in list(self._flights.values()):
            if flight.deadline <= now:
                self._withdraw(flight)
                self._end(
                    flight, ClusterError(ErrorCode.DEADLINE_EXCEEDED, "the time for the answer is over")
                )
            elif flight.connection and not flight.confirmed:
                self._check_answer(flight, now)
        for model in self._waiting.models():
            for request_id, error in self._waiting.expired(model, now):
                self._end(self._flights[request_id], error)
            self._pump(model, now)
        self.orders.give(self._waiting.waiting_since(), now)

    def _check_answer(self, flight: Flight, now: float) -> None:
        worker = self._placement.unanswered(flight, now)
        if worker is None:
            return
        logger.warning("request %s: worker %s does not answer", flight.request_id, worker.worker_id)
        self._placement.abort(flight.connection, flight.request_id)
        self._placement.confirm(flight)
        error = ClusterError(ErrorCode.NO_WORKER_AVAILABLE, "no worker answered in time; ask again")
        self._retry(flight, worker, error, now)

    def fail_all(self, error: ClusterError) -> None:
        """End every request: the gateway stops."""
        for flight in list(self._flights.values()):
            self._withdraw(flight)
            self._end(flight, error)

    # --- moves ---

    def _place_or_wait(self, flight: Flight, now: float) -> None:
        if not self._placement.place(flight, now):
            self._wait(flight, now)

    def _wait(self, flight: Flight, now: float) -> None:
        flight.tried.clear()
        self._waiting.enter(flight, now)

    def _retry(self, flight: Flight, worker: WorkerView, error: ClusterError, now: float) -> None:
        """On to another worker with a request of which nothing was shown yet, or end it."""
        flight.connection = b""
        flight.attempt += 1
        if flight.began or flight.attempt >= self._config.routing.attempts:
            self._end(flight, error)
            return
        logger.info("request %s: again, after worker %s: %s", flight.request_id, worker.worker_id, error)
        self._waiting.exempt(flight, now)
        flight.tried = {worker.worker_id}
        self._guarded(flight, now, self._place_or_wait)

    def _guarded(self, flight: Flight, now: float, move: Callable[[Flight, float], None]) -> None:
        try:
            move(flight, now)
        except ClusterError as error:
            self._end(flight, error)

    def _end(self, flight: Flight, error: ClusterError) -> None:
        self._flights.pop(flight.request_id, None)
        self._waiting.leave(flight)
        flight.outlet.failed(error)

    def _withdraw(self, flight: Flight) -> None:
        """Take the request back, wherever it is."""
        self._waiting.leave(flight)
        self._placement.take_back(flight)

    def pump(self, now: float) -> None:
        """A worker has news: perhaps it has a place."""
        for model in self._waiting.models():
            self._pump(model, now)

    def _pump(self, model: str, now: float) -> None:
        while (ticket := self._waiting.head(model)) is not None:
            flight = self._flights[ticket.request_id]
            hopeless = self._catalog.is_hopeless(model, now)
            if not hopeless and self._placement.choose(flight, now) is None:
                return
            self._waiting.leave(flight)
            if hopeless or not self._placement.place(flight, now):
                self._guarded(flight, now, self._wait)
                if not hopeless:
                    return
