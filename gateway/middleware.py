"""Around every request: its id, its path without variants, errors as JSON, one line in the log.

Plain ASGI: anything that stands between handler and client would hide back-pressure and departures.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access import ANYBODY, Access
from gateway.body import Headers, discard_body, header
from gateway.failures import Shape, render, shape_of
from gateway.line import Line
from gateway.traces import Trace
from protocol.api_keys import now as time_now
from protocol.errors import ClusterError, ErrorCode

logger = logging.getLogger(__name__)

_WATCHED = ("/health", "/metrics", "/admin/state", "/admin/feed", "/dashboard")
"""What the operator looks at, often, and also when there is no room for clients."""

_OPERATORS = ("/admin", "/dashboard", "/metrics")
"""No page of another site may read these."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_RETRY = re.compile(r"[1-9][0-9]{0,3}")
"""Clients of the vendors count their attempts, from 0."""
_CORS = [
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"x-request-id, request-id, x-worker-id, x-served-model, x-should-retry, retry-after, retry-after-ms,"
        b" x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests,"
        b" x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens,"
        b" anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining,"
        b" anthropic-ratelimit-requests-reset, anthropic-ratelimit-tokens-limit,"
        b" anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset",
    ),
]
_PREFLIGHT = [
    *_CORS,
    (b"access-control-allow-methods", b"GET, POST, DELETE, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-allow-private-network", b"true"),
    (b"access-control-max-age", b"600"),
]
_CLOSES = frozenset({ErrorCode.REQUEST_TOO_LARGE, ErrorCode.REQUEST_TIMEOUT})
"""After these the rest of the request is still on its way, so that the connection cannot go on."""


class Reply:
    """The answer under way. Handlers find it in `scope["state"]["reply"]`.

    `raw` writes past all that stands between; only for body messages. `line` does so at once, or not at all.
    """

    def __init__(
        self,
        send: Send,
        request_id: str,
        extra: list[tuple[bytes, bytes]],
        line: Line,
        shape: Shape = Shape.OPENAI,
    ) -> None:
        self.raw = send
        self.line = line
        self.request_id = request_id
        self.status = 0
        self.worker_id = ""
        self.model = ""
        self.caller = ANYBODY
        self.peer = ""
        """The address from which it was asked."""
        self.closes = False
        """Whether the connection ends with this answer."""
        self.told: dict[str, str | int | float] = {}
        """What the access line says of the request beyond ids, status and time."""
        self.trace: Trace | None = None
        self._extra = [*extra]
        self.shape = shape

    def tell(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Headers that stand on the answer, whatever it is."""
        self._extra += headers

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            request_id = self.request_id.encode()
            ids = [(b"x-request-id", request_id), (b"request-id", request_id)]
            headers = [*message.get("headers", ()), *ids, *self._extra]
            if self.closes:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self.raw(message)

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.raw({"type": "http.response.body", "body": body})

    async def fail(self, error: ClusterError, receive: Receive) -> None:
        """Answer with the error, unless the status has gone out."""
        if self.status:
            return
        answer = render(error, self.shape, self.request_id)
        self.closes = self.closes or error.code in _CLOSES
        await self.send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        too_large = error.code is ErrorCode.REQUEST_TOO_LARGE
        await self.raw({"type": "http.response.body", "body": answer.body, "more_body": too_large})
        if too_large:
            await discard_body(receive)
            await self.raw({"type": "http.response.body", "body": b""})


class Entrance:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, has_room: Callable[[], bool], access: Access) -> None:
        self._app = app
        self._access = access
        self._has_room = has_room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a connection of type {scope['type']!r}, though only HTTP is served")
        began = time.monotonic()
        asked = scope["path"]
        scope["path"] = path = plain_path(asked)
        extra = [] if path.startswith(_OPERATORS) else _CORS
        reply = Reply(send, request_id(scope["headers"]), extra, scope["state"]["line"], shape_of(path))
        scope["state"] = {"reply": reply}
        try:
            await self._answer(scope, receive, reply)
        except ClusterError as error:
            reply.told["finish"] = error.code
            if error.code is ErrorCode.CLIENT_CLOSED_REQUEST:
                reply.status = reply.status or 499
            await reply.fail(error, receive)
        except Exception:
            reply.told["finish"] = ErrorCode.INTERNAL_ERROR
            logger.exception("request %s failed by a mistake of ours", reply.request_id)
            await reply.fail(_mistake(), receive)
        finally:
            _log(scope, asked, reply, time.monotonic() - began)

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        if scope["method"] == "OPTIONS":
            await reply.whole(204, _PREFLIGHT[len(_CORS) :], b"")
            return
        if not self._has_room() and not scope["path"].startswith(_WATCHED):
            reply.closes = True  # a refused client must not keep the place of one that is served
            message = "this gateway has as many connections as it takes; ask again later"
            raise ClusterError(ErrorCode.OVERLOADED, message)
        reply.peer = scope["client"][0] if scope.get("client") else ""
        reply.caller = self._access.caller(scope["path"], scope["headers"], reply.peer, time_now())
        try:
            await self._app(scope, receive, reply.send)
        except HTTPException as error:
            if error.status_code != 405 or reply.status:
                raise
            allowed = (error.headers or {}).get("Allow", "")
            message = f"{scope['method']} is not possible here; use {allowed}"
            answer = render(
                ClusterError(ErrorCode.METHOD_NOT_ALLOWED, message), reply.shape, reply.request_id
            )
            await reply.whole(405, [*answer.headers, (b"allow", allowed.encode())], answer.body)


def plain_path(path: str) -> str:
    """One spelling for each path: no `/v1` (nor two, of a base URL that has one), no doubled slash."""
    path = re.sub(r"/{2,}", "/", path)
    while path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/") or "/"


def request_id(headers: Headers) -> str:
    """The client's own id where it is harmless, else a new one."""
    for name in (b"x-request-id", b"x-client-request-id"):
        given = header(headers, name)
        if _ID.fullmatch(given):
            return given
    return f"req-{secrets.token_hex(12)}"


def _mistake() -> ClusterError:
    return ClusterError(
        ErrorCode.INTERNAL_ERROR, "the gateway failed by a mistake of its own; its log tells more"
    )


def _log(scope: Scope, asked: str, reply: Reply, seconds: float) -> None:
    # What watches the gateway asks every second; answers that are in order are not worth a line.
    watched = reply.status < 400 and scope["path"].startswith(_WATCHED)
    level = logging.DEBUG if watched else logging.INFO
    if not logger.isEnabledFor(level):
        return
    path = asked[:200].encode("unicode_escape").decode()
    told = {"model": reply.model or "-", "worker": reply.worker_id or "-", **reply.told}
    retry = header(scope["headers"], b"x-stainless-retry-count")
    if _RETRY.fullmatch(retry):
        told["retry"] = int(retry)
    if reply.caller.name:
        told["key"] = reply.caller.name
    logger.log(
        level,
        "request %s: %s %s -> %d, %.3f s, %s",
        reply.request_id,
        scope["method"],
        path,
        reply.status,
        seconds,
        ", ".join(f"{name} {value}" for name, value in told.items()),
        extra={
            "fields": {
                "method": scope["method"],
                "path": path,
                "status": reply.status,
                "duration_s": round(seconds, 3),
                **told,
            }
        },
    )
