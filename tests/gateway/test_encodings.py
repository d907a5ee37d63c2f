"""Compressed bodies: what is unpacked, what is refused, and that a bomb does no harm."""

from __future__ import annotations

import gzip
import zlib

import pytest

from gateway import encodings
from gateway.encodings import unpacked
from protocol.errors import ClusterError

BODY = b'{"model": "m"}' * 10


zstd = encodings.zstd
PACKED = b"" if zstd is None else zstd.compress(BODY)
needs_zstd = pytest.mark.skipif(zstd is None, reason="backports.zstd is not installed; run: scripts/install")


@needs_zstd
@pytest.mark.parametrize("times", [1, 2])
def test_zstd_is_unpacked(times: int):
    assert unpacked(PACKED * times, "zstd", len(BODY) * times) == BODY * times


@needs_zstd
@pytest.mark.parametrize(
    ("packed", "code"),
    [
        (b"no zstd", "invalid_request"),
        (PACKED[:-5], "invalid_request"),
        (PACKED + b"rest", "invalid_request"),
        (PACKED * 2, "request_too_large"),
        (zstd.compress(bytes(100_000_000)) if zstd else b"", "request_too_large"),
        # One that asks for a window of 128 MiB.
        (bytes.fromhex("28b52ffd0088") + bytes.fromhex("010000"), "invalid_request"),
    ],
)
def test_zstd_that_cannot_be_unpacked_within_the_limit_is_refused(packed: bytes, code: str):
    with pytest.raises(ClusterError) as caught:
        unpacked(packed, "zstd", len(BODY))
    assert caught.value.code == code


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), "x-gzip"),
        (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), "gzip"),
        (zlib.compress(BODY), "deflate"),
        (raw_deflate(BODY), "deflate"),
    ],
)
def test_what_was_packed_is_unpacked(packed: bytes, encoding: str):
    assert unpacked(packed, encoding, len(BODY)) == BODY


@pytest.mark.parametrize(
    ("packed", "encoding", "code"),
    [
        (b"no gzip", "gzip", "invalid_request"),
        (b"no deflate", "deflate", "invalid_request"),
        (gzip.compress(BODY)[:-5], "gzip", "invalid_request"),
        (gzip.compress(BODY) + b"rest", "gzip", "invalid_request"),
        (raw_deflate(BODY), "gzip", "invalid_request"),
        (gzip.compress(BODY + b"x"), "gzip", "request_too_large"),
        (gzip.compress(BODY) + gzip.compress(b"x"), "gzip", "request_too_large"),
        (gzip.compress(bytes(100_000_000), 1), "gzip", "request_too_large"),
    ],
)
def test_what_cannot_be_unpacked_within_the_limit_is_refused(packed: bytes, encoding: str, code: str):
    with pytest.raises(ClusterError) as caught:
        unpacked(packed, encoding, len(BODY))
    assert caught.value.code == code
