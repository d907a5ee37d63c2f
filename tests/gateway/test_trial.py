"""A request for several answers takes no more workers with it than one for one, and holds up nobody."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.flight import Flight
from gateway.trial import POISON_DEATHS, Trial
from protocol.messages import Abort, Finished
from protocol.values import Load, Usage
from tests.gateway.fleet import Fleet, Outlet

NAMES = ("a", "b", "c", "d")


def several(number: int, *, slots: int, names: tuple[str, ...] = NAMES) -> tuple[Fleet, list[Outlet]]:
    """A fleet, and one request for so many answers."""
    fleet = Fleet()
    fleet.join(*names, slots=slots, can_resume=True)
    return fleet, more(fleet, number)


def more(fleet: Fleet, number: int, name: str = "r") -> list[Outlet]:
    trial = Trial(name)
    return [fleet.ask(f"{name}.{index}", further=bool(index), trial=trial) for index in range(number)]


def holders(fleet: Fleet, name: str = "r") -> list[bytes]:
    """The workers that have one of them now."""
    found = {flight.connection for flight in fleet.dispatcher.flights if flight.trial.name == name}
    return sorted(found - {b""})


def begin(fleet: Fleet, connection: bytes) -> None:
    """The last that was sent there gets a token."""
    fleet.start(connection)
    fleet.say(connection, "x", token_ids=(1,))


def end(fleet: Fleet, flight: Flight) -> None:
    """Whichever it is of those that its worker has."""
    said = Finished(
        request_id=flight.request_id,
        attempt=flight.attempt,
        finish_reason="stop",
        usage=Usage(),
        load=Load(),
    )
    fleet.receive(flight.connection, said)


def codes(outlets: list[Outlet]) -> set[str]:
    return {outlet.code for outlet in outlets}


def test_until_one_has_a_token_two_workers_at_most_have_them():
    fleet, outlets = several(4, slots=1)
    first, _ = holders(fleet)
    assert fleet.counts == (2, 2)
    begin(fleet, first)
    fleet.pass_time(0.1)
    assert (len(holders(fleet)), fleet.counts) == (4, (4, 0))
    assert codes(outlets) == {""}


def test_those_that_wait_for_it_hold_up_nobody_and_stand_in_no_waiting_room():
    fleet = Fleet()
    fleet.join(*NAMES, slots=1, max_waiting=8)
    outlets = more(fleet, 6)
    assert fleet.counts == (2, 4)
    later = [fleet.ask(f"later.{index}") for index in range(2)]
    assert fleet.counts == (4, 4)
    fleet.pass_time(0.1)
    assert fleet.counts == (4, 4)
    assert codes(outlets + later) == {""}


def test_two_deaths_end_all_and_those_in_line_go_to_no_third():
    fleet, outlets = several(4, slots=1)
    first, second = holders(fleet)
    fleet.lose(first)
    assert holders(fleet) == [second]
    fleet.lose(second)
    fleet.pass_time(0.1, beating=tuple(c for c in (b"a", b"b", b"c", b"d") if c not in (first, second)))
    assert codes(outlets) == {"", "poison_request"}
    assert holders(fleet) == []
    # The client is told, and closes all: no worker is asked in between.
    for index in range(4):
        fleet.dispatcher.cancel(f"r.{index}", fleet.now)
    assert sum(bool(fleet.at(name.encode())) for name in NAMES) == POISON_DEATHS
    assert fleet.counts == (0, 0)


def test_all_that_a_dead_worker_had_are_one_death():
    fleet, outlets = several(4, slots=4, names=("a",))
    assert len(fleet.at(b"a")) == 4
    fleet.join("b", "c", slots=4, can_resume=True)
    fleet.lose(b"a")
    (second,) = holders(fleet)
    assert codes(outlets) == {""}
    begin(fleet, second)
    fleet.finish(second)
    assert codes(outlets) == {""}


def test_after_a_death_one_worker_has_them_until_all_that_died_have_a_token():
    fleet, outlets = several(2, slots=1, names=("a",))
    fleet.join("b", "c", "d", slots=1, can_resume=True)
    fleet.pass_time(0.0)
    assert len(holders(fleet)) == 2
    fleet.lose(b"a")
    (second,) = holders(fleet)
    assert fleet.counts == (1, 1)
    begin(fleet, second)
    fleet.pass_time(0.1)
    (third,) = set(holders(fleet)) - {second}
    begin(fleet, third)
    fleet.lose(third)
    fleet.lose(second)  # neither is a death without a token
    assert codes(outlets) == {""}


def test_an_innocent_neighbour_does_not_clear_who_was_there_when_two_workers_died():
    """As with a list of prompts, of which one is poison."""
    fleet, outlets = several(2, slots=2, names=("a",))
    fleet.join("b", "c", "d", slots=2, can_resume=True)
    assert len(fleet.at(b"a")) == 2
    fleet.lose(b"a")
    (second,) = holders(fleet)
    (innocent, guilty) = fleet.at(second)
    fleet.dispatcher.flights[innocent].emitted.append(1)
    fleet.lose(second)
    assert [outlets[int(name[-1])].code for name in (innocent, guilty)] == ["", "poison_request"]


def test_deaths_with_a_token_after_the_first_are_not_added_up():
    fleet, outlets = several(3, slots=2, names=("a",))
    fleet.now = 1.0
    fleet.lose(b"a")
    fleet.join("b", slots=1, can_resume=True)
    assert fleet.at(b"b") == ["r.0"]
    begin(fleet, b"b")
    for name in ("c", "d"):
        fleet.join(name, slots=1, can_resume=True)
    fleet.pass_time(0.1)
    assert holders(fleet) == [b"b", b"c", b"d"]
    last = next(c for c in (b"c", b"d") if fleet.at(c) == ["r.2"])
    fleet.lose(last)
    assert codes(outlets) == {""}


def test_a_cut_network_that_silences_both_workers_is_one_death():
    fleet = Fleet()
    fleet.join("a", "b", slots=1, can_resume=True)
    outlets = more(fleet, 2)
    for connection in (b"a", b"b"):
        fleet.accept(connection)
    fleet.pass_time(6.0)
    fleet.lose(b"a")  # as ZeroMQ's own heartbeats find it, one after the other
    fleet.pass_time(1.0)
    fleet.lose(b"b")
    assert codes(outlets) == {""}
    fleet.join("a", "b", slots=2, incarnation="2", can_resume=True)
    assert len(holders(fleet)) == 1
    (third,) = holders(fleet)
    fleet.accept(third)
    fleet.pass_time(6.0)
    fleet.lose(third)
    assert "poison_request" in codes(outlets)


def test_a_client_that_leaves_frees_all():
    fleet, _ = several(6, slots=1)
    taken = holders(fleet)
    for index in reversed(range(6)):  # those in line first: they are not to take the others' places
        fleet.dispatcher.cancel(f"r.{index}", fleet.now)
    assert fleet.counts == (0, 0)
    assert [len(fleet.wire.to(connection, Abort)) for connection in taken] == [1, 1]
    assert sum(len(fleet.at(name.encode())) for name in NAMES) == 2


STEPS = st.lists(
    st.tuples(st.sampled_from(["lose", "begin", "finish", "reject", "beat", "fail"]), st.integers(0, 3)),
    max_size=30,
)


@given(STEPS, st.integers(2, 6), st.integers(1, 3))
@settings(deadline=None)
def test_whatever_happens_nobody_waits_without_end(steps, number: int, slots: int):
    """And no more workers die of a request that never gets a token than may."""
    fleet, outlets = several(number, slots=slots)
    begun = False
    deaths = 0
    for index, (what, at) in enumerate(steps):
        if "poison_request" in codes(outlets):
            break
        connection = NAMES[at].encode()
        there = fleet.dispatcher.flights.at(connection)
        if not there:
            continue
        fleet.now += 0.3
        if what == "lose":
            deaths += not begun
            fleet.registry.heard(connection, fleet.now)
            fleet.lose(connection)
            fleet.join(NAMES[at], slots=slots, incarnation=f"{index + 2:03}", can_resume=True)
        elif fleet.last(connection).request_id in {flight.request_id for flight in there}:
            begun = begun or what in ("begin", "finish")
            match what:
                case "begin":
                    begin(fleet, connection)
                case "finish":
                    fleet.finish(connection)
                case "reject" if not fleet.dispatcher.flights[fleet.last(connection).request_id].began:
                    fleet.reject(connection)
                case "beat":
                    fleet.beat(connection)
                case "fail":
                    fleet.fail(connection, "shutting_down")
    assert deaths <= POISON_DEATHS
    if codes(outlets) <= {""}:
        for _ in range(200):
            for name in NAMES:
                fleet.registry.heard(name.encode(), fleet.now)
                fleet.beat(name.encode(), running=0)
                for flight in fleet.dispatcher.flights.at(name.encode()):
                    end(fleet, flight)
            fleet.now += 0.3
        assert [outlet.ends for outlet in outlets] == [1] * number
        assert fleet.counts == (0, 0)
