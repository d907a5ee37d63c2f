"""Questions to workers: whom they reach, and that each gets one answer."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import WorkerConfig
from protocol.errors import ClusterError
from protocol.messages import Failed, Goodbye, Result, Tokenize
from protocol.values import Load
from tests.gateway.fleet import Fleet


class Asker:
    """What came of one question."""

    def __init__(self, fleet: Fleet, request_id: str = "q") -> None:
        self.told: list[Any] = []
        self.refused: list[str] = []
        fleet.membership.questions.ask(
            Tokenize(request_id=request_id, text="a"),
            "m",
            fleet.now,
            self.told.append,
            lambda error: self.refused.append(str(error.code)),
        )


def asked_at(fleet: Fleet, connection: bytes) -> list[str]:
    return [message.request_id for message in fleet.wire.to(connection, Tokenize)]


def test_the_worker_with_the_least_in_hand_is_asked_and_a_full_one_too():
    fleet = Fleet()
    fleet.join("a", "b")
    for number in range(2):
        fleet.ask(f"r{number}")  # both are full
    asker = Asker(fleet)
    (connection,) = [c for c in (b"a", b"b") if asked_at(fleet, c)]
    fleet.receive(connection, Result(request_id="q", value={"x": 1}))
    fleet.receive(connection, Result(request_id="q", value={"x": 2}))
    assert asker.told == [{"x": 1}]
    assert len(fleet.membership.questions) == 0


def test_a_failure_is_told_as_it_came():
    fleet = Fleet()
    fleet.join("a")
    asker = Asker(fleet)
    fleet.receive(b"a", Failed(request_id="q", attempt=0, code="unsupported", message="no", load=Load()))
    assert asker.refused == ["unsupported"]


def test_when_a_worker_leaves_the_next_one_is_asked_and_then_nobody():
    fleet = Fleet()
    fleet.join("a", "b")
    asker = Asker(fleet)
    first, second = (b"a", b"b") if asked_at(fleet, b"a") else (b"b", b"a")
    fleet.receive(first, Goodbye(reason="done"))
    assert asked_at(fleet, second) == ["q"]
    fleet.receive(second, Goodbye(reason="done"))
    assert asker.refused == ["no_worker_available"]
    assert asker.told == []


def test_an_answer_of_another_worker_or_after_the_end_is_ignored():
    fleet = Fleet()
    fleet.join("a")
    fleet.join("other", model="n")
    asker = Asker(fleet)
    fleet.receive(b"other", Result(request_id="q", value=1))
    assert asker.told == []
    fleet.membership.questions.forget("q")
    fleet.receive(b"a", Result(request_id="q", value=1))
    assert asker.told == []


def test_where_nobody_is_ready_that_is_said():
    for workers, code in (((), "no_worker_available"), ((WorkerConfig(id="a", model="m"),), "model_loading")):
        fleet = Fleet(workers=workers)
        with pytest.raises(ClusterError) as caught:
            Asker(fleet)
        assert caught.value.code == code
