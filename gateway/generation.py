"""The generation routes: parse, open, write. A raw ASGI endpoint: tokens pass no other layer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from gateway.access import terms
from gateway.body import Intake, client_closed, session, wait_for_disconnect
from gateway.choices import Choices, generates
from gateway.cluster import Cluster
from gateway.dialects.base import Answered, Asked, Dialect, Identity, Writer
from gateway.line import Line
from gateway.metrics import Metrics
from gateway.middleware import Reply
from gateway.quotas import Quotas
from gateway.sight import Sight
from gateway.stream import Stream
from gateway.traces import Traces
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Finished, Generate

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


class Generation:
    """The endpoint of one dialect. Holds nothing of a request when it is over."""

    def __init__(self, dialect: Dialect, cluster: Cluster, desk: Desk) -> None:
        self._dialect = dialect
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
            reply.trace = self._traces.begin(scope["headers"], reply.request_id, _now())
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
                reply.trace.end(reply.model, code, _now())

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        asked, size = await self._intake.take(scope["headers"], receive, self._dialect.parse)
        for owner, refusal in asked.kept_for.items():
            if owner != reply.caller.name:
                raise refusal
        reply.model = self._cluster.catalog.named(asked.model, reply.caller)
        asked = replace(asked, messages=self._sight.checked(asked.messages, reply.model, reply.caller))
        choices = Choices(self._cluster, asked, terms(scope["headers"], reply.caller))
        requests = self._requests(asked, reply, session(scope["headers"]))
        await self._quotas.take(reply.caller, len(requests), reply.tell, reply.shape)
        watcher: asyncio.Task[None] | None = None
        try:
            requests, parts = await self._sight.take(requests, receive, reply.caller.name or reply.peer)
            try:
                choices.open(requests, size, parts)
            finally:
                if reply.trace is not None:
                    lives = self._cluster.dispatcher.lives.of(requests[0].request_id)
                    reply.trace.parsed(asked, lives, _now())
            watcher = asyncio.create_task(_watch(receive, choices))
            if asked.stream:
                await self._write_stream(asked, choices, reply)
            else:
                await self._write_whole(asked, choices, reply)
        finally:
            if choices.overrun:
                self._metrics.cut_off()
                logger.warning("request %s: the client reads too slowly and is cut off", reply.request_id)
            if watcher is not None:
                watcher.cancel()
            if choices.worker is not None:
                reply.worker_id = choices.worker.worker_id
            reply.told = choices.account()
            if reply.trace is not None:
                reply.trace.answered(choices.usage, reply.told.get("first_token_s"))
            self._quotas.done(reply.caller, len(requests), choices.close())

    def _requests(self, asked: Asked, reply: Reply, conversation: str) -> list[Generate]:
        """Ids are unique inside the cluster even where two clients send the same one."""
        asked = replace(asked, cache_key=asked.cache_key or conversation)
        request_id = f"{reply.request_id}.{secrets.token_hex(4)}"
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        requests = generates(
            asked, request_id, reply.model, seed, self._limits.request_timeout_s, reply.caller
        )
        if reply.trace is None:
            return requests
        return [replace(request, trace_context=reply.trace.place.carried) for request in requests]

    async def _write_whole(self, asked: Asked, choices: Choices, reply: Reply) -> None:
        while not choices.is_over:
            await choices.changed()
        if choices.error is not None:
            raise choices.error
        if choices.gone:
            raise client_closed()
        self._measure(choices, reply)
        answers = [
            Answered(tuple(stream.pieces()), stream.end)
            for stream in choices.streams
            if stream.end is not None
        ]
        body = self._dialect.whole(asked, _identity(asked, choices, reply), answers, choices.usage)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await reply.whole(200, headers + _origin(choices, reply), body)

    async def _write_stream(self, asked: Asked, choices: Choices, reply: Reply) -> None:
        while not (choices.worker or choices.is_over or choices.silent):
            await choices.changed()
        if choices.error is not None:
            raise choices.error
        if choices.gone:
            raise client_closed()
        headers = self._dialect.stream_headers + _origin(choices, reply)
        await reply.send({"type": "http.response.start", "status": 200, "headers": headers})
        writer = self._dialect.writer(asked, _identity(asked, choices, reply))
        await self._write_events(_News(writer, choices, reply.line), reply)
        if choices.error is not None:
            raise choices.error
        self._measure(choices, reply)

    async def _write_events(self, news: _News, reply: Reply) -> None:
        choices = news.choices
        while True:
            events = news.events()
            if choices.gone:
                raise client_closed()
            over = choices.is_over
            if events:
                choices.writing(reply.line.cut)
                await reply.raw({"type": "http.response.body", "body": events, "more_body": not over})
                choices.written()
            if over:
                return
            await choices.changed(news.push)

    def _measure(self, choices: Choices, reply: Reply) -> None:
        first_s, whole_s = choices.seconds()
        self._metrics.answered(reply.model, first_s, whole_s, choices.usage)


class _News:
    """What of the answers was written, and what comes next."""

    def __init__(self, writer: Writer, choices: Choices, line: Line) -> None:
        self.choices = choices
        self._writer = writer
        self._line = line
        self._began = False
        self._open = list(enumerate(choices.streams))

    def events(self) -> bytes:
        """All that came since the last call; a sign of life where nothing did for long."""
        choices = self.choices
        events = b""
        if not self._began and choices.worker is not None:
            self._began = True
            events = self._writer.start(choices.prompt)
        if self._began:
            for index, stream in self._open:
                events += self._came(index, stream)
                if stream.end is not None:
                    events += self._finish(index, stream.end)
        if choices.error is not None:
            events += self._writer.fail(choices.error)
        elif not events and choices.silent:
            events = self._writer.keepalive()
        return events

    def push(self) -> bool:
        """Have what came written at the end of the turn, if that is possible at once."""
        line = self._line
        if not self._began or not line.is_free:
            return False
        events = b""
        for index, stream in self._open:  # most often there is one
            events += self._came(index, stream)
        if events:
            choices = self.choices
            choices.wrote = True
            choices.turn.writes.append((line.write, line.framed(events)))
        return True

    def _came(self, index: int, stream: Stream) -> bytes:
        """What came of one since the last call, but for its end."""
        if (plain := stream.plain()) is not None:
            return self._writer.text(index, plain.text, plain.completion_tokens)
        return b"".join([self._writer.piece(index, piece) for piece in stream.pieces()])

    def _finish(self, index: int, end: Finished) -> bytes:
        # Not taken out in place: the list is being looked through.
        self._open = [(number, stream) for number, stream in self._open if number != index]
        events = self._writer.finish(index, end)
        return events if self._open else events + self._writer.end(self.choices.usage)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _watch(receive: Receive, choices: Choices) -> None:
    await wait_for_disconnect(receive)
    choices.leave()


def _identity(asked: Asked, choices: Choices, reply: Reply) -> Identity:
    fingerprint = None if choices.worker is None else choices.worker.card.fingerprint
    return Identity(
        secrets.token_hex(12), int(time.time()), asked.model or reply.model, fingerprint, reply.caller.name
    )


def _origin(choices: Choices, reply: Reply) -> list[tuple[bytes, bytes]]:
    """Where the answer comes from, as far as that is known when the status goes out."""
    headers = [(b"x-served-model", reply.model.encode("ascii", "replace"))]
    if choices.worker is not None:
        reply.worker_id = choices.worker.worker_id
        headers.append((b"x-worker-id", reply.worker_id.encode("ascii", "replace")))
    return headers
