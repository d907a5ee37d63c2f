"""A gateway made of its production parts, with the simulation's clock and wire in place of its shells."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from gateway import queue
from gateway.breaker import BreakerState
from gateway.catalog import Catalog
from gateway.dispatch import Dispatcher
from gateway.flight import Sent
from gateway.membership import Membership
from gateway.placement import Choice
from gateway.registry import Registry, WorkerView
from protocol.config import ClusterConfig
from protocol.errors import ClusterError
from protocol.messages import (
    Delta,
    Finished,
    GatewayMessage,
    Generate,
    Heartbeat,
    Result,
    Started,
    WorkerMessage,
)
from protocol.values import ChatMessage, SamplingParams
from scripts.simulation.audit import GATEWAY_LOST, LEFT, Audit, Record
from scripts.simulation.clock import Clock
from scripts.simulation.link import Link
from scripts.simulation.worker import MODEL

_TICK_S = 0.1
_CHECK_S = 1.0
_BYTES_PER_TOKEN = 4
_SAMPLING = SamplingParams()


class Outlet:
    """Where the answer to one request goes: into its record."""

    def __init__(self, record: Record, audit: Audit, clock: Clock) -> None:
        self._record, self._audit, self._clock = record, audit, clock

    def started(self, worker: WorkerView, message: Started) -> None: ...

    def delta(self, delta: Delta, now: float) -> None:
        self._audit.told(self._record, delta.token_ids)

    def result(self, result: Result) -> None: ...

    def finished(self, worker: WorkerView, message: Finished) -> None:
        self._audit.ended(self._record, "done", self._clock.now)

    def failed(self, error: ClusterError) -> None:
        self._audit.ended(self._record, str(error.code), self._clock.now)


class Gateway:
    """Owns the connections as its side sees them. Restarted, it begins with nothing."""

    def __init__(
        self,
        name: str,
        config: ClusterConfig,
        policy: Callable[[Mapping[str, int]], Choice],
        clock: Clock,
        audit: Audit,
        book: Mapping[str, Record],
    ) -> None:
        self.name = name
        self.up = True
        self._config, self._policy, self._clock, self._audit, self._book = config, policy, clock, audit, book
        self._links: dict[bytes, Link] = {}
        self._starts = 0

    def start(self, seed: int) -> None:
        """With new production objects."""
        self._starts += 1
        self.up = True
        now, config = self._clock.now, self._config
        rng = random.Random(f"{self.name} {self._starts} {seed}")
        self._seen: dict[str, int] = {}
        self._links.clear()
        self.registry = Registry(config.heartbeat, takes_fakes=True)
        self.catalog = Catalog(config.workers, len(config.all_gateways), self.registry, now)
        self.dispatcher = Dispatcher(
            config, self.registry, self.catalog, self, rng, choice=self._policy(self._seen)
        )
        self._membership = Membership(self.name, self.registry, self.catalog, self.dispatcher, self)
        for every_s, action in (
            (_TICK_S, self._tick),
            (config.heartbeat.interval_s, self._ping),
            (_CHECK_S, self._check),
        ):
            self._clock.at(now + rng.random() * every_s, self._repeat, self._starts, every_s, action)

    def _repeat(self, start: int, every_s: float, action: Callable[[], None]) -> None:
        if self.up and start == self._starts:
            action()
            self._clock.at(self._clock.now + every_s, self._repeat, start, every_s, action)

    def stop(self) -> None:
        """Its process ends, and with it everything that its own clients asked."""
        self.up = False
        for flight in self.dispatcher.flights:
            self._audit.ended(self._book[flight.request_id], GATEWAY_LOST, self._clock.now)
        for link in list(self._links.values()):
            link.worker.lost(link)

    # --- clients ---

    def ask(self, record: Record) -> None:
        now = self._clock.now
        self._audit.came(self.name, now)
        asked = record.request
        request = Generate(
            request_id=record.request_id,
            attempt=0,
            model=MODEL,
            sampling=_SAMPLING,
            seed=0,
            messages=(ChatMessage(role="user", content=asked.talk),),
            cache_key=asked.key,
        )
        outlet = Outlet(record, self._audit, self._clock)
        try:
            self.dispatcher.submit(request, outlet, asked.prompt * _BYTES_PER_TOKEN, now)
        except ClusterError as error:
            outlet.failed(error)

    def leave(self, record: Record) -> None:
        """The client goes away."""
        if self.up and self.dispatcher.flights.get(record.request_id) is not None:
            self._audit.ended(record, LEFT, self._clock.now)
            self.dispatcher.cancel(record.request_id, self._clock.now)

    # --- workers ---

    def connected(self, link: Link) -> None:
        self._links[link.connection] = link

    def disconnected(self, link: Link) -> None:
        """The socket's monitor tells that some peer is gone; a ping finds out which."""
        if self.up and self._links.pop(link.connection, None) is not None:
            self._membership.ping(self._clock.now)

    def receive(self, link: Link, message: WorkerMessage) -> None:
        if not self.up or link.connection not in self._links:
            return
        if isinstance(message, Heartbeat):
            self._seen[link.worker.name] = message.load.running + message.load.waiting
        self._membership.receive(link.connection, message, self._clock.now)

    def send(self, connection: bytes, message: GatewayMessage, parts: Sequence[bytes] = ()) -> Sent:
        """The `Transport`."""
        link = self._links.get(connection)
        if link is None:
            self._clock.at(self._clock.now, self._gone, self._starts, connection)
            return Sent.LOST
        if isinstance(message, Generate):
            record = self._book[message.request_id]
            resumed = len(message.resume_token_ids)
            self._audit.sent(record, self.name, link.worker.name, resumed, self._clock.now)
        link.down(message)
        return Sent.OK

    def _gone(self, start: int, connection: bytes) -> None:
        if self.up and start == self._starts:
            self._membership.lost(connection, self._clock.now, "its connection closed")

    def _tick(self) -> None:
        self._membership.tick(self._clock.now)

    def _ping(self) -> None:
        self._membership.ping(self._clock.now)

    # --- what must hold ---

    def _check(self) -> None:
        now = self._clock.now
        for view in self.registry.views():
            if self.dispatcher.breakers.state(view, now) is not BreakerState.CLOSED:
                self._audit.breaker_open(self.name, view.worker_id)
        flights = [
            f for f in self.dispatcher.flights if not f.connection and not self._book[f.request_id].sends
        ]
        limit = queue.max_requests(self._config.queue, self.catalog.slots(MODEL))
        self._audit.queued(self.name, len(flights), limit)

    def check_rest(self, held: Mapping[str, int | None]) -> None:
        """`held`: what each worker has in hand, None where it does not run."""
        self._audit.at_rest(self.name, "requests", len(self.dispatcher.flights))
        self._audit.at_rest(self.name, "in line", len(self.dispatcher.waiting))
        for worker, count in held.items():
            view = self.registry.named(worker)
            seen = view.taken if view is not None and view.connection else None
            self._audit.sees(self.name, worker, seen, count)
            if view is not None:
                self._audit.at_rest(self.name, f"unconfirmed at {worker}", view.unconfirmed)
