"""One HTTP connection: uvicorn's protocol, with the bounds that it lacks.

Uvicorn waits for ever for a head, takes heads of any length, keeps a connection whose client does
not read, and forgets the answer under way when a client leaves that sent its next request already.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import secrets
import socket
from collections.abc import Iterable
from typing import Any, cast

from starlette.types import Message, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.failures import render
from gateway.line import Line
from gateway.patience import Patience, Phase, Standing
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode, InvalidRequestError

logger = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 65_536
"""Of a request's head, and of all else in it that is not body."""
_MAX_FRAMING = 16
"""Bytes of framing for a byte of body: as many as single bytes in chunks of their own need, and more."""
_MAX_PIPELINED = 16
"""Requests that may wait for the answer under way on their connection."""
_SPARE_CONNECTIONS = 32
"""Above the limit so many are still told why they are not served, and asked for the gateway's health."""
_ASKED_AFTER = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, and how often; the second is the first one's name on macOS."""
_MAX_UNSENT_BYTES = 64 * 1024
"""An answer waits when so much is unsent, as on a plain connection; asyncio's TLS takes eight times that. In
the system's own buffer, too."""
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


def prepare(connection: socket.socket) -> None:
    """Let the system ask whether the client is still there: one whose machine or network is gone says
    nothing, and one that waits for a whole answer is not written to for long. And let it take more as soon
    as the client takes some: with megabytes ahead of it, a slow reader would seem to stand still."""
    if (option := getattr(socket, "TCP_NOTSENT_LOWAT", None)) is not None:
        connection.setsockopt(socket.IPPROTO_TCP, option, _MAX_UNSENT_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ASKED_AFTER.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Connection(HttpToolsProtocol):
    """A connection under the gateway's limits. On the event loop."""

    def __init__(self, limits: LimitsConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self.beneath: asyncio.Transport | None = None
        """What carries this connection, where that is encrypted."""
        self._patience = Patience(limits, self.loop.time())
        self._answering: RequestResponseCycle | None = None
        self._line: Line | None = None
        """Of the answer under way."""
        self._requests = 0
        self._in_message = False
        self._unaccounted_bytes = 0
        """Of the piece being read: what was not seen to be body so far."""
        self._framing_bytes = 0
        """Of the message being read: all that is not body."""
        self._body_bytes = 0

    # --- the life of the connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        with contextlib.suppress(OSError):  # gone already, as macOS tells here
            prepare(transport.get_extra_info("socket"))
        if self.beneath is not None:
            transport.set_write_buffer_limits(_MAX_UNSENT_BYTES)
        surplus = len(self.connections) - self._limits.max_connections
        if surplus <= 0:
            return
        idle = next((c for c in self.connections if c is not self and cast("Connection", c).is_idle), None)
        if idle is not None:
            cast("Connection", idle).transport.abort()  # nothing is lost, and a new client may want something
        elif surplus > _SPARE_CONNECTIONS:
            transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer here."""
        return self._phase() is not Phase.ANSWER and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        """What is answered, or waits for that, has nobody to hear it."""
        waiting = [cycle for cycle, _app in self.pipeline]
        if self._answering is not None and not self._answering.response_complete:
            waiting.append(self._answering)
        for cycle in waiting:
            cycle.disconnected = True
            cycle.message_event.set()
        if self._line is not None:
            self._line.lost()

    def end_if_overdue(self, now: float) -> None:
        """Asked about twice a second."""
        standing = Standing(self._phase(), self._requests, self._unsent())
        if not self._patience.is_over(now, standing):
            return
        is_told = self.transport.is_closing() or standing.unsent
        if standing.phase is Phase.HEAD and standing.requests and not is_told:
            message = f"the head of the request did not arrive within {self._limits.body_timeout_s:g} s"
            self._refuse(ClusterError(ErrorCode.REQUEST_TIMEOUT, message))
        else:
            (self.beneath or self.transport).abort()

    def _unsent(self) -> int:
        """Bytes that the system has not taken yet."""
        if self.beneath is None:
            return self.transport.get_write_buffer_size()
        own = 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()
        return own + self.beneath.get_write_buffer_size()

    def _phase(self) -> Phase:
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.ANSWER
        began = self._in_message and (self.cycle is None or self.cycle.scope is not self.scope)
        return Phase.HEAD if began or self.cycle is None else Phase.IDLE

    # --- bytes from the client ---

    def data_received(self, data: bytes) -> None:
        if not self._in_message:
            data = _without_upgrade(data)
        self._unaccounted_bytes = len(data)
        self._framing_bytes += len(data)
        super().data_received(data)
        allowed = _MAX_HEAD_BYTES + _MAX_FRAMING * self._body_bytes
        if self._in_message and self._framing_bytes > allowed and not self.transport.is_closing():
            message = f"the head of the request has more than {_MAX_HEAD_BYTES} bytes; send less"
            self._refuse(ClusterError(ErrorCode.REQUEST_TOO_LARGE, message))

    def on_message_begin(self) -> None:
        self._requests += 1
        self._in_message = True
        self._framing_bytes = self._unaccounted_bytes
        self._body_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests wait for the answer under way")
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()  # uvicorn stops here; then nobody would see the client leave

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes -= len(body)
        self._unaccounted_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    # --- answers ---

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        cycle.scope["state"]["line"] = self._line = Line(cycle)
        if cycle.scope["http_version"] == "1.0":
            cycle.send = functools.partial(  # type: ignore[method-assign]
                _send_without_chunks, cycle, cast("Send", cycle.send)
            )
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequestError("these bytes are no HTTP request", reason="invalid_http"))

    def _refuse(self, error: ClusterError) -> None:
        """Answer what never became a request; where another answer is under way, just end."""
        if (
            self._answering is None
            or self._answering.response_complete
            or not self._answering.response_started
        ):
            self.transport.write(whole_answer(error, self.server_state.default_headers))
        self.transport.close()
        self._leave()  # over TLS, it takes the client's word or some time until the connection is lost


def end_overdue(connections: Iterable[asyncio.Protocol], now: float) -> None:
    """End those that stood still for too long."""
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.end_if_overdue(now)


def _without_upgrade(data: bytes) -> bytes:
    """A head that asks for another protocol, without that wish: the parser would drop the body with it."""
    end = data.find(b"\r\n\r\n")
    head = data[: end if end >= 0 else len(data)]
    plain = _UPGRADE.sub(b"\r\nx-upgrade:", head)
    return data if plain == head else plain + data[len(head) :]


async def _send_without_chunks(cycle: RequestResponseCycle, send: Send, message: Message) -> None:
    """For HTTP/1.0, which knows no chunks: a body without a length ends with its connection."""
    if message["type"] == "http.response.start":
        if not any(name == b"content-length" for name, _value in message["headers"]):
            cycle.chunked_encoding = False
    elif cycle.chunked_encoding is False and not cycle.expected_content_length:
        cycle.expected_content_length = len(message["body"])
    await send(message)


def whole_answer(error: ClusterError, headers: list[tuple[bytes, bytes]]) -> bytes:
    """The bytes of an answer to what never became a request; it has an id, as in the log."""
    request_id = f"req-{secrets.token_hex(12)}"
    logger.info("request %s: %s", request_id, error.message)
    answer = render(error)
    name = request_id.encode()
    ids = [(b"x-request-id", name), (b"request-id", name), (b"connection", b"close")]
    lines = [b"%b: %b\r\n" % pair for pair in (*headers, *answer.headers, *ids)]
    return b"".join([STATUS_LINE[answer.status], *lines, b"\r\n", answer.body])
