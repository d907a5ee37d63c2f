"""A gateway's pure parts put together with ports that only write down. Time is a number of the test's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from gateway.catalog import Catalog
from gateway.dispatch import Dispatcher
from gateway.flight import Sent, Terms
from gateway.membership import Membership
from gateway.registry import Registry, WorkerView
from gateway.trial import Trial
from protocol.config import ClusterConfig, GatewayConfig, WorkerConfig
from protocol.errors import ClusterError
from protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Delta,
    Deltas,
    Failed,
    Finished,
    GatewayMessage,
    Generate,
    Heartbeat,
    Hello,
    Message,
    Rejected,
    Result,
    Started,
)
from protocol.values import Capacity, Load, ModelCard, SamplingParams, Task, Timings, Usage

M = TypeVar("M", bound=Message)


class Wire:
    """A transport that keeps what was sent; `outcome` is what a send to a connection gives."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, GatewayMessage]] = []
        self.parts: list[tuple[bytes, bytes]] = []
        self.outcome: dict[bytes, Sent] = {}

    def send(self, connection: bytes, message: GatewayMessage, parts: Sequence[bytes] = ()) -> Sent:
        outcome = self.outcome.get(connection, Sent.OK)
        if outcome is Sent.OK:
            self.sent.append((connection, message))
            self.parts += [(connection, part) for part in parts]
        return outcome

    def to(self, connection: bytes, kind: type[M]) -> list[M]:
        return [m for to, m in self.sent if to == connection and isinstance(m, kind)]


class Outlet:
    """Keeps what came for one request."""

    def __init__(self) -> None:
        self.workers: list[str] = []
        self.text = ""
        self.end: Finished | None = None
        self.error: ClusterError | None = None
        self.ends = 0
        self.value: Any = None

    def started(self, worker: WorkerView, message: Started) -> None:
        self.workers.append(worker.worker_id)

    def delta(self, delta: Delta, now: float) -> None:
        self.text += delta.text

    def result(self, result: Result) -> None:
        self.value = result.value

    def finished(self, worker: WorkerView, message: Finished) -> None:
        self.end = message
        self.ends += 1

    def failed(self, error: ClusterError) -> None:
        self.error = error
        self.ends += 1

    @property
    def code(self) -> str:
        return "" if self.error is None else str(self.error.code)


def hello(worker_id: str, *, model: str = "m", slots: int = 1, **fields: Any) -> Hello:
    card = ModelCard(
        name=model,
        aliases=fields.pop("aliases", ()),
        engine=fields.pop("engine", "batched"),
        can_resume=fields.pop("can_resume", False),
        modalities=fields.pop("modalities", ("text",)),
        task=fields.pop("task", Task.GENERATE),
    )
    known = {"incarnation": "1", "state": "ready", "protocol": PROTOCOL_VERSION} | fields
    capacity = Capacity(max_num_seqs=slots, max_waiting=known.pop("max_waiting", 0))
    return Hello(worker_id=worker_id, node="local", pid=1, card=card, capacity=capacity, **known)


class Fleet:
    """Workers are named by their connection, `b"a"` being the worker `a`."""

    def __init__(
        self, *, workers: tuple[WorkerConfig, ...] = (), takes_fakes: bool = True, **tables: Any
    ) -> None:
        gateway = GatewayConfig(id="gw", http="127.0.0.1:0")
        config = ClusterConfig(version=1, gateway=gateway, workers=workers, **tables)
        self.wire = Wire()
        self.registry = Registry(config.heartbeat, takes_fakes=takes_fakes)
        self.catalog = Catalog(workers, 1, self.registry, now=0.0)
        self.dispatcher = Dispatcher(config, self.registry, self.catalog, self.wire, random.Random(1))
        self.membership = Membership("gw", self.registry, self.catalog, self.dispatcher, self.wire)
        self.now = 0.0
        self.keys: dict[bytes, str] = {}
        """Of connections that come over tcp."""

    def join(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.receive(name.encode(), hello(name, **fields))

    def receive(self, connection: bytes, message: Any) -> None:
        self.membership.receive(connection, message, self.now, self.keys.get(connection, ""))

    def ask(
        self,
        request_id: str,
        *,
        model: str = "m",
        size: int = 10,
        time_left_s: float | None = None,
        waits: bool | None = None,
        only: str = "",
        further: bool = False,
        tenant: str = "",
        priority: str = "normal",
        cache_key: str = "",
        parts: tuple[bytes, ...] = (),
        trace_context: dict[str, str] | None = None,
        trial: Trial | None = None,
    ) -> Outlet:
        outlet = Outlet()
        request = Generate(
            request_id=request_id,
            attempt=0,
            model=model,
            sampling=SamplingParams(),
            seed=1,
            time_left_s=time_left_s,
            tenant=tenant,
            priority=priority,
            cache_key=cache_key,
            trace_context=trace_context or {},
        )
        terms = Terms(waits, only, parts, trial)
        self.dispatcher.submit(request, outlet, size, self.now, terms=terms, further=further)
        return outlet

    def at(self, connection: bytes) -> list[str]:
        """Requests that were sent there."""
        return [m.request_id for m in self.wire.to(connection, Generate)]

    def last(self, connection: bytes) -> Generate:
        return self.wire.to(connection, Generate)[-1]

    def accept(self, connection: bytes, **load: int) -> None:
        request = self.last(connection)
        found = Load(**({"running": 1} | load))
        self.receive(connection, Accepted(request_id=request.request_id, attempt=request.attempt, load=found))

    def reject(self, connection: bytes, **load: int) -> None:
        request = self.last(connection)
        self.receive(
            connection,
            Rejected(
                request_id=request.request_id,
                attempt=request.attempt,
                load=Load(**load),
                reason="engine_busy",
            ),
        )

    def start(self, connection: bytes) -> None:
        request = self.last(connection)
        self.accept(connection)
        self.receive(connection, Started(request_id=request.request_id, attempt=request.attempt))

    def say(
        self, connection: bytes, text: str, attempt: int | None = None, token_ids: tuple[int, ...] = ()
    ) -> None:
        request = self.last(connection)
        chosen = request.attempt if attempt is None else attempt
        delta = Delta(request_id=request.request_id, attempt=chosen, text=text, token_ids=token_ids)
        self.receive(connection, Deltas(deltas=(delta,)))

    def finish(
        self, connection: bytes, request_id: str | None = None, timings: Timings | None = None
    ) -> None:
        request = self.last(connection)
        self.receive(
            connection,
            Finished(
                request_id=request_id or request.request_id,
                attempt=request.attempt,
                finish_reason="stop",
                usage=Usage(),
                load=Load(),
                timings=timings or Timings(),
            ),
        )

    def fail(self, connection: bytes, code: str, message: str = "it broke") -> None:
        request = self.last(connection)
        self.receive(
            connection,
            Failed(
                request_id=request.request_id,
                attempt=request.attempt,
                code=code,
                message=message,
                load=Load(),
            ),
        )

    def beat(self, connection: bytes, state: str = "ready", **load: int) -> None:
        self.receive(connection, Heartbeat(state=state, load=Load(**load)))

    def lose(self, connection: bytes) -> None:
        self.membership.lost(connection, self.now, "killed")

    def pass_time(self, seconds: float, *, beating: tuple[bytes, ...] = ()) -> None:
        self.now += seconds
        for connection in beating:
            view = self.registry.at(connection)
            assert view is not None
            self.receive(connection, Heartbeat(state=view.state, load=view.load))
        self.membership.tick(self.now)

    @property
    def counts(self) -> tuple[int, int]:
        return self.dispatcher.flights.running, len(self.dispatcher.waiting)
