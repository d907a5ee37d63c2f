"""Reading the body of a request within its limits, and seeing the client leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.types import Receive

from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode

Headers = Iterable[tuple[bytes, bytes]]

_LINGER_S = 5.0
"""A client that sends too much is read on for so long, so that it gets to see the answer."""


def header(headers: Headers, name: bytes) -> str:
    """The header of that lower-case name; empty when it is not there."""
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def check_headers(headers: Headers, limits: LimitsConfig) -> None:
    """Refuse what need not be read: another content type, a compressed body, too long a body."""
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
    if encoding not in ("", "identity"):
        raise ClusterError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"the content encoding {encoding[:100]!r} is not taken; send the body uncompressed",
        )
    length = header(headers, b"content-length")
    if length.isdigit() and int(length) > limits.max_body_bytes:
        raise _too_large(limits)


async def read_body(receive: Receive, limits: LimitsConfig) -> bytes:
    """The whole body. Raises `ClusterError` when it is too long, too slow, or the client leaves."""
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
