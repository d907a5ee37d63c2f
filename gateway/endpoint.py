"""What the endpoints share whose requests take a place in a worker."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway.body import Intake, client_closed
from gateway.choices import Choices
from gateway.cluster import Cluster
from gateway.failures import Headers
from gateway.lives import Life
from gateway.metrics import Metrics
from gateway.middleware import Reply
from gateway.quotas import Quotas
from gateway.sight import Sight
from gateway.traces import Traces
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Work

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Desk:
    """What the endpoints of all dialects share."""

    metrics: Metrics
    limits: LimitsConfig
    intake: Intake
    quotas: Quotas
    sight: Sight
    traces: Traces | None = None


class Endpoint(ABC):
    """Counts how requests end. Holds nothing of one when it is over."""

    def __init__(self, cluster: Cluster, desk: Desk) -> None:
        self._cluster = cluster
        self._metrics = desk.metrics
        self._limits = desk.limits
        self._intake = desk.intake
        self._quotas = desk.quotas
        self._sight = desk.sight
        self._traces = desk.traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply: Reply = scope["state"]["reply"]
        code = "ok"
        if self._traces is not None:
            reply.trace = self._traces.begin(scope["headers"], reply.request_id, self._now())
        try:
            await self._answer(scope, receive, reply)
        except ClusterError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = ErrorCode.CLIENT_CLOSED_REQUEST
            raise
        except Exception:
            code = ErrorCode.INTERNAL_ERROR
            raise
        finally:
            self._metrics.outcome(reply.model, code)
            if reply.trace is not None:
                reply.told["trace"] = reply.trace.place.trace_id
                reply.trace.end(reply.model, code, self._now())

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Raises `ClusterError`."""

    @asynccontextmanager
    async def _attended(self, choices: Choices, reply: Reply, answers: int) -> AsyncIterator[None]:
        """So many answers within the limits of the caller's key; closed and accounted for at the end.

        Raises `ClusterError`.
        """
        await self._quotas.take(reply.caller, answers, reply.tell, reply.shape)
        try:
            yield
        finally:
            reply.line.watch(None)
            if choices.overrun:
                self._metrics.cut_off()
                logger.warning("request %s: the client reads too slowly and is cut off", reply.request_id)
            if choices.worker is not None:
                reply.worker_id = choices.worker.worker_id
            reply.told = choices.account()
            if reply.trace is not None:
                reply.trace.answered(choices.usage, reply.told.get("first_token_s"))
            self._quotas.done(reply.caller, answers, choices.close())

    async def _until_whole(self, choices: Choices, reply: Reply) -> None:
        """Return when all its answers are. Raises `ClusterError`."""
        while not choices.is_over:
            await choices.changed()
        refuse_lost(choices)
        self._measure(choices, reply)

    def _lives(self, request: Work) -> list[Life]:
        return self._cluster.dispatcher.lives.of(request.request_id)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _measure(self, choices: Choices, reply: Reply) -> None:
        first_s, whole_s = choices.seconds()
        self._metrics.answered(reply.model, first_s, whole_s, choices.usage)


def refuse_lost(choices: Choices) -> None:
    """Raises `ClusterError` for a request that failed, or whose client has left."""
    if choices.error is not None:
        raise choices.error
    if choices.gone:
        raise client_closed()


def origin(choices: Choices, reply: Reply) -> Headers:
    """Where the answer comes from, as far as that is known when the status goes out."""
    headers = [(b"x-served-model", reply.model.encode("ascii", "replace"))]
    if choices.worker is not None:
        reply.worker_id = choices.worker.worker_id
        headers.append((b"x-worker-id", reply.worker_id.encode("ascii", "replace")))
    return headers
