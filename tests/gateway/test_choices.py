"""Several answers to one request: what was opened is closed, whatever happens in between."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gateway.choices import Choices, generates
from gateway.cluster import Cluster
from gateway.dialects.openai_chat import parse
from gateway.flight import Terms
from protocol.messages import Abort
from protocol.values import Usage
from tests.gateway.fleet import Fleet, Outlet

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
    choices = Choices(cast("Cluster", cluster), Terms(), n=ASKED.n)
    with pytest.raises(RuntimeError):
        choices.open(generates(ASKED, "r", "m", 1, 60.0), 10)
    assert cluster.in_hand == {"r"}
    choices.close()
    assert not cluster.in_hand


class PureCluster:
    """The dispatcher alone."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.turn = None

    def open(self, request: Any, size: int, *, terms: Terms, further: bool, **_settings: Any) -> Outlet:
        outlet = Outlet()
        self._fleet.dispatcher.submit(request, outlet, size, 0.0, terms=terms, further=further)
        return outlet

    def close(self, request_id: str) -> Usage:
        self._fleet.dispatcher.cancel(request_id, 0.0)
        return Usage(prompt_tokens=1 if request_id == "r" else 5, completion_tokens=1)


def test_what_waits_when_the_client_leaves_is_not_sent_to_the_places_of_the_others():
    fleet = Fleet()
    fleet.join("a", slots=1)
    choices = Choices(cast("Cluster", PureCluster(fleet)), Terms(), n=ASKED.n)
    choices.open(generates(ASKED, "r", "m", 1, 60.0), 10)
    assert fleet.counts == (1, 1)
    assert choices.close() == 3  # the prompt is the first one's
    assert fleet.at(b"a") == ["r"]
    assert len(fleet.wire.to(b"a", Abort)) == 1
    assert fleet.counts == (0, 0)
