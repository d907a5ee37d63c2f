"""Several answers to one request: what was opened is closed, whatever happens in between."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.choices import Choices, generates
from gateway.cluster import Cluster
from gateway.dialects.openai_chat import parse
from gateway.flight import Terms
from protocol.values import Usage

ASKED = parse(b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2}')


class BrokenCluster:
    """Takes a request in hand, and fails then by a mistake of its own."""

    def __init__(self) -> None:
        self.in_hand: set[str] = set()
        self.turn = None

    def open(self, request: Any, *_args: Any, **_settings: Any) -> None:
        self.in_hand.add(request.request_id)
        raise RuntimeError("a mistake")

    def close(self, request_id: str) -> Usage:
        self.in_hand.discard(request_id)
        return Usage()


def test_a_request_that_fails_while_it_is_opened_is_closed_too():
    cluster = BrokenCluster()
    choices = Choices(cast("Cluster", cluster), ASKED, Terms())
    with pytest.raises(RuntimeError):
        choices.open(generates(ASKED, "r", "m", 1, 60.0), 10)
    assert cluster.in_hand == {"r"}
    choices.close()
    assert not cluster.in_hand
