"""Compressed bodies of requests, unpacked within a limit. Pure."""

from __future__ import annotations

import zlib

from protocol.errors import ClusterError, ErrorCode, InvalidRequestError

ENCODINGS = ("gzip", "x-gzip", "deflate")
_ANY_HEADER = 47
"""Makes zlib recognise the headers of gzip and of zlib."""
_NO_HEADER = -15


def unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body as it was before it was compressed. Raises `ClusterError`."""
    try:
        return _unpacked(body, _ANY_HEADER, max_bytes)
    except zlib.error as error:
        if encoding == "deflate":  # by its name it has a header, but some clients leave it out
            try:
                return _unpacked(body, _NO_HEADER, max_bytes)
            except zlib.error:
                pass
        raise InvalidRequestError(
            f"the body is not what its content encoding {encoding!r} says: {error}",
            reason="invalid_encoding",
        ) from None


def _unpacked(body: bytes, header: int, max_bytes: int) -> bytes:
    """Of several compressed parts in a row, which gzip allows, all."""
    found: list[bytes] = []
    size = 0
    while body:
        unpacker = zlib.decompressobj(header)
        part = unpacker.decompress(body, max_bytes - size + 1)
        size += len(part)
        if size > max_bytes:
            raise ClusterError(
                ErrorCode.REQUEST_TOO_LARGE, f"the body has more than {max_bytes} bytes unpacked; send less"
            )
        if not unpacker.eof:
            raise zlib.error("it ends too early")
        found.append(part)
        body = unpacker.unused_data
    return b"".join(found)
