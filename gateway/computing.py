"""The routes whose requests are answered in one piece: embeddings, rerank, score."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator

from msgspec.structs import replace
from starlette.types import Receive, Scope

from gateway.access import terms
from gateway.choices import Choices
from gateway.cluster import Cluster
from gateway.dialects.base import Identity
from gateway.dialects.computed import Computed
from gateway.endpoint import Desk, Endpoint, origin
from gateway.middleware import Reply
from protocol.api_keys import PRIORITIES
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import TASKS
from protocol.values import Task

_OPERATIONS = {Task.EMBED: "embeddings", Task.RERANK: "rerank"}
"""In OpenTelemetry's words, where it has one."""
_TURN_BYTES = 200_000
"""Of a body, written in one turn of the loop: other streams go on in between."""


class Computing(Endpoint):
    """The endpoint of one dialect."""

    def __init__(self, dialect: Computed, cluster: Cluster, desk: Desk) -> None:
        super().__init__(cluster, desk)
        self._dialect = dialect

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        posed, size = await self._intake.take(scope["headers"], receive, self._dialect.parse)
        task, caller = TASKS[type(posed.request)], reply.caller
        reply.model = self._cluster.catalog.named_for(task, posed.model, caller)
        request = replace(
            posed.request,
            request_id=f"{reply.request_id}.{secrets.token_hex(4)}",
            model=reply.model,
            priority=PRIORITIES[max(PRIORITIES.index(caller.priority), posed.level)],
            tenant=caller.name,
            time_left_s=self._limits.request_timeout_s,
            trace_context={} if reply.trace is None else reply.trace.place.carried,
        )
        choices = Choices(self._cluster, terms(scope["headers"], caller))
        async with self._attended(choices, reply, 1):
            try:
                choices.open([request], size)
            finally:
                if reply.trace is not None:
                    reply.trace.understood(_OPERATIONS[task], self._lives(request), self._now())
            reply.line.watch(choices.leave)
            await self._until_whole(choices, reply)
            value = choices.streams[0].value
            if value is None:
                raise ClusterError(ErrorCode.INTERNAL_ERROR, "the worker ended the request without a result")
            identity = Identity(
                secrets.token_hex(12), int(time.time()), posed.model or reply.model, None, caller.name
            )
            body = await _gathered(self._dialect.whole(posed, identity, value, choices.usage))
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            await reply.whole(200, headers + origin(choices, reply), body)


async def _gathered(pieces: Iterator[bytes]) -> bytes:
    """A long body is made in several turns."""
    body = bytearray()
    written = 0
    for piece in pieces:
        body += piece
        if len(body) - written >= _TURN_BYTES:
            written = len(body)
            await asyncio.sleep(0)
    return bytes(body)
