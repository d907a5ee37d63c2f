"""What clients of each library are told of a limit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.failures import Shape
from gateway.limit_headers import headers
from gateway.windows import Window

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
WINDOW = Window(limit=5, previous=0, previous_ends_s=0.0, current=2, current_ends_s=65.0)


def test_openais_clients_are_told_a_span():
    assert headers("requests", WINDOW, Shape.OPENAI, NOW) == [
        (b"x-ratelimit-limit-requests", b"5"),
        (b"x-ratelimit-remaining-requests", b"3"),
        (b"x-ratelimit-reset-requests", b"1m5s"),
    ]


@pytest.mark.parametrize("kind", ["requests", "tokens"])
def test_anthropics_clients_are_told_a_time_too(kind):
    told = dict(headers(kind, WINDOW, Shape.ANTHROPIC, NOW))
    assert told[f"x-ratelimit-limit-{kind}".encode()] == b"5"
    mine = {name: value for name, value in told.items() if name.startswith(b"anthropic-")}
    assert mine == {
        f"anthropic-ratelimit-{kind}-limit".encode(): b"5",
        f"anthropic-ratelimit-{kind}-remaining".encode(): b"3",
        f"anthropic-ratelimit-{kind}-reset".encode(): b"2026-01-01T12:01:35Z",
    }
