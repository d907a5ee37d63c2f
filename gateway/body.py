"""Reading the body of a request within its limits, and seeing the client leave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from starlette.types import Receive

from gateway.encodings import ENCODINGS, unpacked
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode, InvalidRequestError

Headers = Iterable[tuple[bytes, bytes]]
T = TypeVar("T")

_LARGE_BODY = 1_000_000
"""Bodies above this are decoded on a thread: decoding would hold up every stream."""
_MAX_HELD_BYTES = 256 * 1024 * 1024
"""Of all bodies that are read or decoded at the same time."""

_SESSIONS = (
    *(b"x-session-id", b"x-session-affinity", b"x-claude-code-session-id", b"x-opencode-session"),
    *(b"session-id", b"session_id", b"conversation_id"),
)
"""Of agents, and of routers for which agents were made."""

_LINGER_S = 5.0
"""A client that sends too much is read on for so long, so that it gets to see the answer."""


def header(headers: Headers, name: bytes) -> str:
    """The header of that lower-case name; empty when it is not there."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return ""


def waits_for_model(headers: Headers) -> bool | None:
    """What `x-wait-for-model` says; None when it is not there. Raises `ClusterError`."""
    text = header(headers, b"x-wait-for-model").strip().lower()
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    if text:
        raise InvalidRequestError("the header x-wait-for-model takes true or false", param="x-wait-for-model")
    return None


def session(headers: Headers) -> str:
    """What the client calls this conversation, in whichever header; empty where in none."""
    given = [pair for pair in headers if pair[0] in _SESSIONS]
    if not given:
        return ""
    found = (header(given, name).strip()[:256] for name in _SESSIONS)
    return next((name for name in found if name), "")


def check_headers(headers: Headers, limits: LimitsConfig) -> str:
    """How the body is compressed; empty when it is not.

    Refuses what need not be read: another content type, an unknown compression, too long a body.
    """
    headers = list(headers)
    kind = header(headers, b"content-type").partition(";")[0].strip().lower()
    if (
        kind
        and kind != "application/json"
        and not (kind.startswith("application/") and kind.endswith("+json"))
    ):
        raise ClusterError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"the content type {kind[:100]!r} is not taken; send JSON as application/json",
        )
    encoding = header(headers, b"content-encoding").strip().lower()
    if encoding not in ("", "identity", *ENCODINGS):
        raise ClusterError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"the content encoding {encoding[:100]!r} is not taken; send the body uncompressed,"
            f" or as {', '.join(ENCODINGS)}",
        )
    length = header(headers, b"content-length")
    if length.isdigit() and int(length) > limits.max_body_bytes:
        raise _too_large(limits)
    return encoding if encoding in ENCODINGS else ""


class Intake:
    """Bodies on their way from bytes to requests. Owns the count of the bytes that they hold."""

    def __init__(self, limits: LimitsConfig, max_held_bytes: int = _MAX_HELD_BYTES) -> None:
        self._limits = limits
        self._max_held = max(max_held_bytes, limits.max_body_bytes)
        self._held = 0
        self._one_at_a_time = asyncio.Lock()

    async def take(self, headers: Headers, receive: Receive, parse: Callable[[bytes], T]) -> tuple[T, int]:
        """The parsed request and the size of its body. Raises `ClusterError`."""
        encoding = check_headers(headers, self._limits)
        with self.share() as hold:
            body = await read_body(receive, self._limits, hold)
            if len(body) <= _LARGE_BODY and not encoding:
                return parse(body), len(body)
            async with self._one_at_a_time:
                if encoding:
                    body = await asyncio.to_thread(unpacked, body, encoding, self._limits.max_body_bytes)
                return await asyncio.to_thread(_without_collecting, parse, body), len(body)

    @contextlib.contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Count bytes by calling what it gives, until the end of the block."""
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            mine += size
            self._held += size
            if self._held > self._max_held:
                message = "this gateway has as many large requests at once as it takes; ask again later"
                raise ClusterError(ErrorCode.OVERLOADED, message)

        try:
            yield hold
        finally:
            self._held -= mine


def _without_collecting(parse: Callable[[bytes], T], body: bytes) -> T:
    """Millions of new objects would set off garbage collections that hold up every thread."""
    gc.disable()
    try:
        return parse(body)
    finally:
        gc.enable()


async def read_body(receive: Receive, limits: LimitsConfig, hold: Callable[[int], None]) -> bytes:
    """The whole body. Raises `ClusterError` when it is too long, too slow, or the client leaves.

    `hold` is told of each piece.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise client_closed()
                part = message.get("body", b"")
                size += len(part)
                if size > limits.max_body_bytes:
                    raise _too_large(limits)
                hold(len(part))
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ClusterError(
            ErrorCode.REQUEST_TIMEOUT, f"the body did not arrive within {limits.body_timeout_s:g} s"
        ) from None


async def discard_body(receive: Receive) -> None:
    """Read what still comes, for a while."""
    try:
        async with asyncio.timeout(_LINGER_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client is gone, or the answer complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


def client_closed() -> ClusterError:
    return ClusterError(ErrorCode.CLIENT_CLOSED_REQUEST, "the client closed the connection")


def _too_large(limits: LimitsConfig) -> ClusterError:
    return ClusterError(
        ErrorCode.REQUEST_TOO_LARGE, f"the body has more than {limits.max_body_bytes} bytes; send less"
    )
