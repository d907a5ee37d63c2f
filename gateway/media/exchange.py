"""One HTTP exchange with one checked address, within its limits."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import h11

from gateway.media.data_urls import too_long
from gateway.media.policy import Place
from gateway.media.refusal import NoConnectionError, PictureError
from protocol import __version__

_READ = 16 * 1024
_MORE_THAN_BODY = 32 * 1024
"""Bytes of heads and of the marks of chunks: more, and a share of the body, only a hostile server sends."""
_EVENTS_AT_ONCE = 64
_MOVED = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Answered:
    """What came: a body, or another address."""

    body: bytes = b""
    location: str | None = None


async def get(
    place: Place,
    address: str,
    tls: ssl.SSLContext,
    *,
    max_bytes: int,
    connect_timeout_s: float,
    look: Callable[[bytearray], object],
) -> Answered:
    """Connect to the address, not to the name; certificates have to be the name's.

    `look` is shown the body as far as it is there, again and again, and raises what it does not want.
    Raises `PictureError`.
    """
    try:
        async with _connected(place, address, tls, connect_timeout_s) as (reader, writer):
            return await _ask(place, reader, writer, max_bytes, look)
    except h11.RemoteProtocolError:
        raise PictureError(f"{place.origin} answered with something that is no HTTP, or broke off") from None
    except ssl.SSLCertVerificationError as error:
        raise PictureError(
            f"the certificate of {place.origin} is not valid: {error.verify_message}"
        ) from None
    except OSError:
        raise PictureError(f"the connection to {place.origin} failed", "failed_to_download_image") from None


@asynccontextmanager
async def _connected(
    place: Place, address: str, tls: ssl.SSLContext, timeout_s: float
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    encrypted = place.scheme == "https"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                address,
                place.port,
                ssl=tls if encrypted else None,
                server_hostname=place.host if encrypted else None,
                limit=_READ,
            )
    except ssl.SSLCertVerificationError:
        raise
    except OSError as error:
        why = "does not answer in time" if isinstance(error, TimeoutError) else "takes no connection"
        raise NoConnectionError(f"{place.origin} {why}", "failed_to_download_image") from None
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _ask(
    place: Place,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    max_bytes: int,
    look: Callable[[bytearray], object],
) -> Answered:
    http = h11.Connection(h11.CLIENT)
    headers = [
        ("host", place.authority),
        ("user-agent", f"studiofleet/{__version__}"),
        ("accept", "image/png, image/jpeg, image/webp, image/gif"),
        ("accept-encoding", "identity"),
        ("connection", "close"),
    ]
    request = http.send(h11.Request(method="GET", target=place.target, headers=headers))
    writer.write((request or b"") + (http.send(h11.EndOfMessage()) or b""))
    received = events = 0
    body = bytearray()
    while True:
        event = http.next_event()
        events += 1
        if events % _EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # thousands of tiny chunks must not hold up the streams
        if event is h11.NEED_DATA:
            data = await reader.read(_READ)
            received += len(data)
            if received - len(body) > _MORE_THAN_BODY + len(body) // 32:
                raise PictureError(f"{place.origin} sends more frame than picture")
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            if event.status_code in _MOVED:
                return Answered(location=_location(place, event))
            _check(place, event, max_bytes)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise too_long(max_bytes)
            look(body)
        elif isinstance(event, h11.EndOfMessage):
            return Answered(bytes(body))


def _check(place: Place, answer: h11.Response, max_bytes: int) -> None:
    if answer.status_code != 200:
        raise PictureError(
            f"{place.origin} answered with the status {answer.status_code}", "failed_to_download_image"
        )
    headers = dict(answer.headers)
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding != b"identity":  # asked for none: what it unpacks to would have no bound
        raise PictureError(f"{place.origin} sends it compressed, which is not taken")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > max_bytes:
        raise too_long(max_bytes)


def _location(place: Place, answer: h11.Response) -> str:
    try:
        return dict(answer.headers)[b"location"].decode()
    except (KeyError, UnicodeDecodeError):
        raise PictureError(f"{place.origin} says that it moved, but not where to") from None
