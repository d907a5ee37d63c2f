"""A worker that beats, but does not get on: its requests go elsewhere, and it gets no more."""

from __future__ import annotations

from gateway.breaker import BreakerState
from protocol.errors import WORKER_DIED
from protocol.messages import Abort, Failed, Heartbeat
from protocol.values import Load
from tests.gateway.fleet import Fleet, Outlet

STALL_S = 30.0


def beat(fleet: Fleet, connection: bytes, *, step_age_s: float = 0.0, running: int = 1) -> None:
    """All beat, this one so."""
    for other in fleet.registry.connections():
        if other != connection:
            fleet.receive(other, Heartbeat(state="ready"))
    load = Load(running=running)
    fleet.receive(connection, Heartbeat(state="ready", load=load, step_age_s=step_age_s))
    fleet.membership.tick(fleet.now)


def pair() -> tuple[Fleet, Outlet, bytes, bytes]:
    """Two workers, a stream at one of them, and the other one."""
    fleet = Fleet()
    fleet.join("a", "b", can_resume=True, slots=2)
    outlet = fleet.ask("r")
    here, there = (b"a", b"b") if fleet.at(b"a") else (b"b", b"a")
    fleet.start(here)
    fleet.say(here, "one", token_ids=(1,))
    return fleet, outlet, here, there


def breaker(fleet: Fleet, connection: bytes) -> BreakerState:
    view = fleet.registry.at(connection)
    assert view is not None
    return fleet.dispatcher.breakers.state(view, fleet.now)


def test_the_stream_of_a_hung_engine_goes_on_elsewhere_and_is_aborted_there():
    fleet, outlet, here, there = pair()
    beat(fleet, here, step_age_s=STALL_S - 0.1)
    assert not fleet.at(there)
    beat(fleet, here, step_age_s=STALL_S)
    assert [m.request_id for m in fleet.wire.to(here, Abort)] == ["r"]
    assert fleet.last(there).resume_token_ids == (1,)
    fleet.say(here, "late", attempt=0, token_ids=(2,))
    fleet.start(there)
    fleet.say(there, " two", token_ids=(2,))
    fleet.finish(there)
    assert (outlet.text, outlet.ends, outlet.error) == ("one two", 1, None)
    assert fleet.dispatcher.tally.takeovers == {"worker_lost": 1}
    assert fleet.counts == (0, 0)


def test_a_hang_opens_the_breaker_at_once():
    fleet, _, here, there = pair()
    beat(fleet, here, step_age_s=STALL_S)
    assert (breaker(fleet, here), breaker(fleet, there)) == (BreakerState.OPEN, BreakerState.CLOSED)


def test_a_hung_worker_gets_nothing_though_there_is_no_other_and_everything_when_it_steps_again():
    fleet = Fleet()
    fleet.join("a", can_resume=True, slots=4)
    first = fleet.ask("first")
    fleet.start(b"a")
    fleet.say(b"a", "one", token_ids=(1,))
    beat(fleet, b"a", step_age_s=STALL_S)
    second = fleet.ask("second")
    for _ in range(20):
        fleet.now += 1.0
        beat(fleet, b"a", step_age_s=STALL_S, running=0)
    assert fleet.counts == (0, 2)
    assert fleet.at(b"a") == ["first"]
    assert (first.error, second.error) == (None, None)
    beat(fleet, b"a", running=0)
    assert sorted(fleet.at(b"a")) == ["first", "first", "second"]


def test_a_stream_without_tokens_at_an_engine_that_steps_is_waited_for():
    """It may be waiting for memory, or for its turn among long prompts."""
    fleet, outlet, here, there = pair()
    for _ in range(200):
        fleet.now += 1.0
        beat(fleet, here, step_age_s=1.0)
    assert not fleet.at(there)
    assert outlet.error is None


def test_a_request_of_which_its_worker_knows_nothing_goes_elsewhere():
    """What it said of the end was lost."""
    fleet, outlet, here, there = pair()
    beat(fleet, here, running=0)
    fleet.now += STALL_S - 0.1
    beat(fleet, here, running=0)
    assert not fleet.at(there)
    fleet.now += 0.1
    beat(fleet, here, running=0)
    assert fleet.last(there).resume_token_ids == (1,)
    assert outlet.error is None


def test_a_moment_without_work_is_no_loss():
    fleet, _, here, there = pair()
    for _ in range(10):
        fleet.now += STALL_S / 2
        beat(fleet, here, running=0)
        fleet.now += STALL_S / 3
        beat(fleet, here, running=1)
    assert not fleet.at(there)


def test_a_request_that_hangs_two_engines_is_not_tried_on_a_third():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.start(b"a")
    fleet.join("b")
    beat(fleet, b"a", step_age_s=STALL_S)
    fleet.start(b"b")
    fleet.join("c")
    beat(fleet, b"b", step_age_s=STALL_S)
    assert outlet.code == "poison_request"
    assert "2 workers ended" in outlet.error.message  # type: ignore[union-attr]
    assert fleet.at(b"c") == []


def test_a_request_with_which_two_engines_ended_is_not_tried_on_a_third_and_the_reason_stays_inside():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    for here, coming in ((b"a", "b"), (b"b", "c")):
        fleet.start(here)
        fleet.join(coming)
        request = fleet.last(here)
        died = Failed(
            request_id="r",
            attempt=request.attempt,
            code="worker_lost",
            message="it hangs",
            load=Load(),
            reason=WORKER_DIED,
        )
        fleet.receive(here, died)
    assert outlet.code == "poison_request"
    assert outlet.error.reason is None  # type: ignore[union-attr]
    assert fleet.at(b"c") == []
