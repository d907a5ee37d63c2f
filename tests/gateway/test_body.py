"""Where bodies are decoded: large and compressed ones beside the event loop, which streams wait for."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterable

import pytest

from gateway.body import Intake, session
from protocol.config import LimitsConfig
from protocol.errors import ClusterError


def take(parts: Iterable[bytes], limits: LimitsConfig | None = None, **headers: str) -> tuple[bytes, bool]:
    """What the parser is given, and whether it is called beside the loop."""
    pieces = list(parts)
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def scenario() -> tuple[bytes, bool]:
        loop_thread = threading.get_ident()
        intake = Intake(limits or LimitsConfig())
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        seen, size = await intake.take(
            pairs, receive, lambda body: (body, threading.get_ident() != loop_thread)
        )
        assert size == len(seen[0])
        return seen

    return asyncio.run(scenario())


def test_a_small_body_is_decoded_at_once():
    assert take([b"{", b"}"]) == (b"{}", False)


def test_a_large_one_is_decoded_beside_the_loop():
    body = b" " * 1_000_001
    assert take([body[:7], body[7:]]) == (body, True)


def test_so_is_one_that_is_compressed():
    assert take([gzip.compress(b"{}")], content_encoding="gzip") == (b"{}", True)


def test_one_that_tells_no_length_is_refused_when_it_gets_too_long():
    limits = LimitsConfig(max_body_bytes=10)
    assert take([b"x" * 10], limits)[0] == b"x" * 10
    with pytest.raises(ClusterError) as caught:
        take([b"x" * 6, b"x" * 5], limits)
    assert caught.value.code == "request_too_large"


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([], ""),
        ([(b"session_id", b"a")], "a"),
        ([(b"x-claude-code-session-id", b" b "), (b"session-id", b"a")], "b"),
        ([(b"x-session-id", b""), (b"x-session-affinity", b"c")], "c"),
        ([(b"x-session-id", b"x" * 300)], "x" * 256),
        ([(b"cookie", b"session_id=a")], ""),
    ],
)
def test_a_conversation_has_a_name_in_many_headers(headers: list[tuple[bytes, bytes]], name: str):
    assert session(headers) == name
