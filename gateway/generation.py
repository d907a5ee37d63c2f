"""The generation routes: parse, open, write. A raw ASGI endpoint: tokens pass no other layer."""

from __future__ import annotations

import logging
import secrets
import time

from msgspec.structs import replace
from starlette.types import Receive, Scope

from gateway.access import terms
from gateway.body import client_closed, session
from gateway.choices import Choices, generates
from gateway.cluster import Cluster
from gateway.dialects.base import Answered, Asked, Dialect, Identity, Writer
from gateway.endpoint import Desk, Endpoint, origin, refuse_lost
from gateway.line import Line, chunk
from gateway.middleware import Reply
from gateway.stream import Stream
from protocol.messages import Finished, Generate
from protocol.values import Task

logger = logging.getLogger(__name__)


class Generation(Endpoint):
    """The endpoint of one dialect."""

    def __init__(self, dialect: Dialect, cluster: Cluster, desk: Desk) -> None:
        super().__init__(cluster, desk)
        self._dialect = dialect

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        asked, size = await self._intake.take(scope["headers"], receive, self._dialect.parse)
        for owner, refusal in asked.kept_for.items():
            if owner != reply.caller.name:
                raise refusal
        reply.model = self._cluster.catalog.named_for(Task.GENERATE, asked.model, reply.caller)
        asked = replace(asked, messages=self._sight.checked(asked.messages, reply.model, reply.caller))
        placed = terms(scope["headers"], reply.caller)
        choices = Choices(self._cluster, placed, n=asked.n, live=asked.stream)
        requests = self._requests(asked, reply, session(scope["headers"]))
        async with self._attended(choices, reply, len(requests)):
            requests, parts = await self._sight.take(requests, receive, reply.caller.name or reply.peer)
            try:
                choices.open(requests, size, parts)
            finally:
                if reply.trace is not None:
                    reply.trace.parsed(asked, self._lives(requests[0]), self._now())
            reply.line.watch(choices.leave)
            if asked.stream:
                await self._write_stream(asked, choices, reply)
            else:
                await self._write_whole(asked, choices, reply)

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
        await self._until_whole(choices, reply)
        answers = [
            Answered(tuple(stream.pieces()), stream.end)
            for stream in choices.streams
            if stream.end is not None
        ]
        body = self._dialect.whole(asked, _identity(asked, choices, reply), answers, choices.usage)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await reply.whole(200, headers + origin(choices, reply), body)

    async def _write_stream(self, asked: Asked, choices: Choices, reply: Reply) -> None:
        while not (choices.worker or choices.is_over or choices.silent):
            await choices.changed()
        refuse_lost(choices)
        headers = self._dialect.stream_headers + origin(choices, reply)
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


class _News:
    """What of the answers was written, and what comes next."""

    __slots__ = ("_began", "_chunked", "_line", "_open", "_writer", "choices")

    def __init__(self, writer: Writer, choices: Choices, line: Line) -> None:
        self.choices = choices
        self._writer = writer
        self._line = line
        self._chunked = line.is_chunked
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
            choices.turn.writes.append((line.write, chunk(events) if self._chunked else events))
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


def _identity(asked: Asked, choices: Choices, reply: Reply) -> Identity:
    fingerprint = None if choices.worker is None else choices.worker.card.fingerprint
    return Identity(
        secrets.token_hex(12), int(time.time()), asked.model or reply.model, fingerprint, reply.caller.name
    )
