"""`POST /v1/chat/completions`: parse, open, write. A raw ASGI endpoint: tokens pass no other layer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from starlette.types import Receive, Scope, Send

from gateway.body import Intake, client_closed, wait_for_disconnect
from gateway.cluster import Cluster
from gateway.dialects import openai_chat, sse
from gateway.dialects.openai_chat import ChatRequest
from gateway.dialects.openai_chat_answer import Identity, StreamEncoder, whole_body
from gateway.metrics import Metrics
from gateway.middleware import Reply
from gateway.stream import Stream
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Generate

logger = logging.getLogger(__name__)


class ChatCompletions:
    """The endpoint. Holds nothing of a request when it is over."""

    def __init__(self, cluster: Cluster, metrics: Metrics, limits: LimitsConfig, intake: Intake) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._limits = limits
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply: Reply = scope["state"]["reply"]
        code = "ok"
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

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        request, size = await self._intake.take(scope["headers"], receive, openai_chat.parse)
        reply.model = self._cluster.catalog.named(request.model)
        generate = _generate(request, reply, self._limits)
        stream = self._cluster.open(generate, size, live=request.stream)
        watcher = asyncio.create_task(_watch(receive, stream))
        try:
            if request.stream:
                await self._write_stream(request, stream, reply)
            else:
                await self._write_whole(request, stream, reply)
        finally:
            if stream.overrun:
                logger.warning("request %s: the client reads too slowly and is cut off", reply.request_id)
            watcher.cancel()
            if stream.worker is not None:
                reply.worker_id = stream.worker.worker_id
            reply.told = stream.account()
            self._cluster.close(generate.request_id)

    async def _write_whole(self, request: ChatRequest, stream: Stream, reply: Reply) -> None:
        while not stream.is_over:
            await stream.changed()
        if stream.end is None:
            raise stream.error or client_closed()
        self._measure(stream, reply)
        text, reasoning = stream.take()
        body = whole_body(_identity(request, stream, reply), text, reasoning, stream.end)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await reply.whole(200, headers + _origin(stream, reply), body)

    async def _write_stream(self, request: ChatRequest, stream: Stream, reply: Reply) -> None:
        while not (stream.worker or stream.is_over or stream.silent):
            await stream.changed()
        if stream.error is not None:
            raise stream.error
        if stream.gone:
            raise client_closed()
        headers = sse.HEADERS + _origin(stream, reply)
        stream.writing(reply.cut)
        await reply.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write_events(request, stream, reply)

    async def _write_events(self, request: ChatRequest, stream: Stream, reply: Reply) -> None:
        encoder: StreamEncoder | None = None
        while True:
            events = b""
            if encoder is None and stream.worker is not None:
                encoder = StreamEncoder(_identity(request, stream, reply), request.include_usage)
                events = encoder.role()
            if encoder is not None:
                events += _news(stream, encoder)
            if stream.gone:
                raise client_closed()
            if stream.error is not None:
                events += sse.error_event(stream.error)
            elif not events and stream.silent:
                events = sse.KEEPALIVE
            over = stream.is_over
            if events:
                stream.writing(reply.cut)
                await reply.raw({"type": "http.response.body", "body": events, "more_body": not over})
                stream.written()
            if over:
                break
            await stream.changed()
        if stream.error is not None:
            raise stream.error
        self._measure(stream, reply)

    def _measure(self, stream: Stream, reply: Reply) -> None:
        if stream.end is not None:
            first_s, whole_s = stream.seconds()
            self._metrics.answered(reply.model, first_s, whole_s, stream.end.usage)


def _news(stream: Stream, encoder: StreamEncoder) -> bytes:
    """All that came since the last look, as events."""
    text, reasoning = stream.take()
    events = b""
    if reasoning:
        events = encoder.reasoning(reasoning)
    if text:
        events += encoder.text(text)
    if stream.end is not None:
        events += encoder.finish(stream.end)
    return events


async def _watch(receive: Receive, stream: Stream) -> None:
    await wait_for_disconnect(receive)
    stream.leave()


def _generate(request: ChatRequest, reply: Reply, limits: LimitsConfig) -> Generate:
    """Unique inside the cluster even where two clients send the same id."""
    return Generate(
        request_id=f"{reply.request_id}.{secrets.token_hex(4)}",
        attempt=0,
        model=reply.model,
        sampling=request.sampling,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        messages=request.messages,
        time_left_s=limits.request_timeout_s,
    )


def _identity(request: ChatRequest, stream: Stream, reply: Reply) -> Identity:
    fingerprint = None if stream.worker is None else stream.worker.card.fingerprint
    model = request.model or reply.model
    return Identity(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model, fingerprint)


def _origin(stream: Stream, reply: Reply) -> list[tuple[bytes, bytes]]:
    """Where the answer comes from, as far as that is known when the status goes out."""
    headers = [(b"x-served-model", reply.model.encode("ascii", "replace"))]
    if stream.worker is not None:
        reply.worker_id = stream.worker.worker_id
        headers.append((b"x-worker-id", reply.worker_id.encode("ascii", "replace")))
    return headers
