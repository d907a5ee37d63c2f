"""Compressed bodies: what is unpacked, what is refused, and that a bomb does no harm."""

from __future__ import annotations

import gzip
import zlib

import pytest

from gateway.encodings import unpacked
from protocol.errors import ClusterError

BODY = b'{"model": "m"}' * 10


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
