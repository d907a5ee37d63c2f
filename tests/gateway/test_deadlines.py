"""When a request has waited too long, for what, and whose fault it is."""

from __future__ import annotations

import pytest

from gateway.deadlines import Deadlines, Missed
from protocol.config import ClusterConfig, GatewayConfig, RoutingConfig
from protocol.messages import Heartbeat
from protocol.values import Load
from tests.gateway.fleet import Fleet

CONFIG = ClusterConfig(
    version=1,
    gateway=GatewayConfig(id="gw", http="127.0.0.1:0"),
    routing=RoutingConfig(answer_timeout_s=5.0, stall_s=30.0),
)


class Case:
    """One request at one worker, which gets news when a test says so."""

    def __init__(self, *, time_left_s: float = 1000.0) -> None:
        self.fleet = Fleet()
        self.fleet.join("a", slots=1)
        self.fleet.ask("r", time_left_s=time_left_s)
        self.deadlines = Deadlines(CONFIG, self.fleet.registry)

    def beat(self, at: float, **told: object) -> None:
        self.fleet.registry.heartbeat(b"a", Heartbeat(state="ready", load=Load(running=1), **told), at)  # type: ignore[arg-type]

    def missed(self, now: float) -> Missed | None:
        return self.deadlines.missed(self.fleet.dispatcher.flights["r"], now)


def test_the_whole_answer_has_its_time_wherever_the_request_is():
    case = Case(time_left_s=20.0)
    case.fleet.accept(b"a")
    assert case.missed(19.9) is None
    missed = case.missed(20.0)
    assert missed is not None
    assert (missed.error.code, missed.worker) == ("deadline_exceeded", None)
    waiting = Case(time_left_s=20.0)
    waiting.fleet.reject(b"a")
    in_line = waiting.missed(20.0)
    assert in_line is not None
    assert (in_line.error.code, in_line.worker) == ("deadline_exceeded", None)


@pytest.mark.parametrize(
    ("beats_at", "now", "is_missed"), [(4.5, 4.9, False), (4.5, 5.0, True), (1.9, 5.0, False)]
)
def test_a_worker_that_beats_says_in_time_whether_it_takes_a_request(
    beats_at: float, now: float, is_missed: bool
):
    """One that is silent may be lost, which is found otherwise."""
    case = Case()
    case.beat(beats_at)
    missed = case.missed(now)
    assert (missed is not None) == is_missed
    if missed is not None:
        assert (missed.error.code, missed.what, missed.hangs) == (
            "no_worker_available",
            "does not answer",
            False,
        )
        assert missed.worker is case.fleet.registry.at(b"a")


def test_what_was_accepted_may_take_its_time_while_the_engine_steps():
    case = Case()
    case.fleet.accept(b"a")
    case.beat(500.0, step_age_s=29.9)
    assert case.missed(500.0) is None
    case.beat(501.0, step_age_s=30.0)
    missed = case.missed(501.0)
    assert missed is not None
    assert (missed.error.code, missed.hangs) == ("worker_lost", True)
    assert missed.what == "stalls: its engine made no step for 30 s"
