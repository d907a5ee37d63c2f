"""The cluster as the HTTP side sees it: open a stream for a request, close it, look at the state."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Iterable
from typing import Any

from gateway import measures, status
from gateway.breaker import BreakerState
from gateway.catalog import Catalog
from gateway.client import TICK_S, Wire
from gateway.dispatch import Dispatcher
from gateway.flight import Sent, Terms
from gateway.membership import Membership
from gateway.registry import Registry, WorkerView
from gateway.spread import Spread
from gateway.stream import Group, Stream
from gateway.turn import Turn
from protocol import __version__
from protocol.addresses import is_loopback, split_http
from protocol.config import ClusterConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import GatewayMessage, Tokenize, Work
from protocol.states import WorkerState
from protocol.values import Usage
from protocol.wire_keys import AllowList

logger = logging.getLogger(__name__)

_ANSWER_S = 60.0
"""So long the answer to a question is waited for, and before it a model that has to be loaded."""
_LOOK_AGAIN_S = 0.2


class Cluster:
    """Owns the registry, the dispatcher and the open streams of one gateway. On the event loop."""

    def __init__(self, config: ClusterConfig, gateway_id: str, wire: Wire) -> None:
        gateway = config.gateway_named(gateway_id)
        self._id = gateway_id
        self._clock = asyncio.get_running_loop().time
        self._limits = config.limits
        self.turn = Turn()
        self._streams: dict[str, Stream] = {}
        rng = random.Random()  # noqa: S311 (spreads load, guards nothing)
        takes_fakes = gateway.allow_fake or is_loopback(split_http(gateway.http)[0])
        self.registry = Registry(config.heartbeat, takes_fakes=takes_fakes)
        self.catalog = Catalog(config.workers, len(config.all_gateways), self.registry, self._clock())
        self.catalog.rules = config.models
        self.catalog.stall_s = config.routing.stall_s
        self.dispatcher = Dispatcher(config, self.registry, self.catalog, wire, rng)
        self._membership = Membership(gateway_id, self.registry, self.catalog, self.dispatcher, wire)
        self._membership.guard = wire.guard
        self._transport = wire
        self.stopping = False
        self.url = ""
        self.lag = Spread(measures.LOOP_LAG.buckets)
        """How late the event loop is, in seconds."""
        self._ticked_at = self._clock()
        wire.start(self._membership, self._tick, self.turn.end)

    def reconfigure(self, config: ClusterConfig) -> None:
        """The configuration was read again: workers and names of models count from now on."""
        self.catalog.configure(config.workers, self._clock())
        self.catalog.rules = config.models

    def allow(self, allowed: AllowList) -> None:
        """These workers, and only these, may come over tcp."""
        self._membership.allow(allowed, self._clock())

    def mark_unattended(self, worker_ids: Iterable[str]) -> None:
        """These, and only these, neither run nor have a supervisor: requests do not wait for them."""
        self.catalog.mark_unattended(worker_ids, self._clock())

    def mark_down(self, worker_ids: Iterable[str]) -> None:
        """These, and only these, nobody starts: requests do not wait for them."""
        self.catalog.mark_down(worker_ids, self._clock())

    def open(
        self,
        request: Work,
        size: int,
        *,
        live: bool,
        group: Group,
        terms: Terms,
        further: bool = False,
    ) -> Stream:
        """The stream of the answer, or of a `further` one to what was taken already.

        Raises `ClusterError`. Call `close` in any case.
        """
        if self.stopping:
            message = "this gateway is shutting down; ask again, or ask another"
            raise ClusterError(ErrorCode.SHUTTING_DOWN, message)
        gaps = self.dispatcher.tally.gaps(request.model)
        stream = Stream(self._limits, self._clock, gaps, live=live, group=group)
        self.dispatcher.submit(request, stream, size, self._clock(), terms=terms, further=further)
        self._streams[request.request_id] = stream
        return stream

    def close(self, request_id: str) -> Usage:
        """Abort the request if it is not over, and free all that it holds: what it took. Idempotent."""
        stream = self._streams.pop(request_id, None)
        flight = self.dispatcher.flights.get(request_id)
        self.dispatcher.cancel(request_id, self._clock())
        if flight is not None:
            return flight.usage
        return stream.end.usage if stream is not None and stream.end is not None else Usage()

    def fail_all(self, error: ClusterError) -> None:
        """End every request: the gateway stops."""
        self.dispatcher.fail_all(error, self._clock())

    async def ask(self, message: Tokenize, model: str, *, waits: bool | None = None) -> Any:
        """What a worker of the model says to a question. Raises `ClusterError`.

        `waits` says whether it waits for a model that is not loaded; None: as configured.
        """
        give_up_at = self._clock() + _ANSWER_S
        while True:
            self.dispatcher.orders.admit(model, self._clock(), waits=waits)
            try:
                return await self._answer(message, model)
            except ClusterError as error:
                if error.code is not ErrorCode.MODEL_LOADING or self.stopping or self._clock() >= give_up_at:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _answer(self, message: Tokenize, model: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        questions = self._membership.questions
        questions.ask(message, model, self._clock(), answer.set_result, answer.set_exception)
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            raise ClusterError(ErrorCode.DEADLINE_EXCEEDED, "no worker answered in time") from None
        finally:
            questions.forget(message.request_id)

    def tell(self, worker: WorkerView, message: GatewayMessage) -> Sent:
        """Say something to a worker that concerns no request."""
        return self._transport.send(worker.connection, message)

    def _tick(self, now: float) -> None:
        self.lag.add(max(0.0, now - self._ticked_at - TICK_S))
        self._ticked_at = now
        for stream in list(self._streams.values()):
            stream.tick(now)

    def breaker(self, worker: WorkerView) -> BreakerState:
        return self.dispatcher.breakers.state(worker, self._clock())

    @property
    def buffered_bytes(self) -> int:
        """What waits for clients to read."""
        return sum(stream.buffered for stream in self._streams.values())

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def is_ready(self) -> bool:
        """Every configured model can be asked, and the gateway takes requests."""
        return not self.stopping and not self.catalog.unready()

    def state(self) -> dict[str, Any]:
        """What `GET /admin/state` tells."""
        now = self._clock()
        gateway = {
            "id": self._id,
            "url": self.url,
            "state": WorkerState.DRAINING if self.stopping else WorkerState.READY,
            "pid": os.getpid(),
            "version": __version__,
            "streams": self.dispatcher.flights.running,
            "queued": len(self.dispatcher.waiting),
        }
        queued = self.dispatcher.waiting.counts()
        queues = [{"model": model, "waiting": waiting} for model, waiting in sorted(queued.items())]
        registry = self.registry
        workers = status.workers(
            self.catalog.configured,
            registry.views(),
            registry.strangers.refusals(),
            self.breaker,
            now,
        )
        return {"gateways": [gateway], "workers": workers, "queues": queues}
