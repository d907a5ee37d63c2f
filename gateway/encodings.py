"""Compressed bodies of requests, unpacked within a limit. Pure."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from protocol.errors import ClusterError, ErrorCode, InvalidRequestError


def _found() -> Any:
    """Python's own module, or its backport; None where there is no wheel of that for this machine."""
    try:
        return importlib.import_module(
            "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        )
    except ImportError:
        return None


zstd = _found()
ENCODINGS = ("gzip", "x-gzip", "deflate", *(("zstd",) if zstd else ()))
_ANY_HEADER = 47
"""Makes zlib recognise the headers of gzip and of zlib."""
_NO_HEADER = -15
_WINDOW_LOG = 23
"""8 MiB, the most that RFC 9659 allows in HTTP: it is how much memory the sender can ask for."""


class _Unpacker(Protocol):
    """One compressed part."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def unpacked(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """The body as it was before it was compressed. Raises `ClusterError`."""
    faults = (zlib.error, EOFError) if zstd is None else (zlib.error, EOFError, zstd.ZstdError)
    try:
        return _unpacked(body, _unpackers(encoding), max_bytes)
    except faults as error:
        if encoding == "deflate":  # by its name it has a header, but some clients leave it out
            try:
                return _unpacked(body, lambda: zlib.decompressobj(_NO_HEADER), max_bytes)
            except (zlib.error, EOFError):
                pass
        raise InvalidRequestError(
            f"the body is not what its content encoding {encoding!r} says: {error}",
            reason="invalid_encoding",
        ) from None


def _unpackers(encoding: str) -> Callable[[], _Unpacker]:
    if encoding == "zstd":
        options = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
        return lambda: zstd.ZstdDecompressor(options=options)
    return lambda: zlib.decompressobj(_ANY_HEADER)


def _unpacked(body: bytes, unpacker: Callable[[], _Unpacker], max_bytes: int) -> bytes:
    """Of several compressed parts in a row, which gzip and zstd allow, all."""
    found: list[bytes] = []
    size = 0
    while body:
        part = unpacker()
        found.append(part.decompress(body, max_bytes - size + 1))
        size += len(found[-1])
        if size > max_bytes:
            raise ClusterError(
                ErrorCode.REQUEST_TOO_LARGE, f"the body has more than {max_bytes} bytes unpacked; send less"
            )
        if not part.eof:
            raise EOFError("it ends too early")
        body = part.unused_data
    return b"".join(found)
