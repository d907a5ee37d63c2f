"""Requests that only some workers can have, and those behind them in the line."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config import QueueConfig
from tests.gateway.fleet import Fleet

SEES = ("text", "image")


def busy(fleet: Fleet, name: str) -> None:
    """Its only place is taken, for good."""
    fleet.ask(f"long-{name}", only=name)
    fleet.start(name.encode())


def test_any_number_that_wait_for_a_busy_worker_hold_up_nobody_else():
    fleet = Fleet()
    fleet.join("a", "b", slots=1)
    busy(fleet, "a")
    busy(fleet, "b")
    for number in range(100):
        fleet.ask(f"pinned-{number}", only="a")
    for number in range(2):
        fleet.ask(f"r{number}")
    fleet.finish(b"b")
    assert fleet.at(b"b")[-1] == "r0"
    fleet.start(b"b")
    fleet.finish(b"b")
    assert fleet.at(b"b")[-1] == "r1"
    fleet.finish(b"a")
    assert fleet.at(b"a")[-1] == "pinned-0"


def test_streams_that_nobody_can_take_over_now_hold_up_nobody_else():
    fleet = Fleet()
    fleet.join("a", "b", can_resume=True)
    busy(fleet, "b")
    for number in range(3):
        fleet.ask(f"stream-{number}", only="a" if number else "")
    fleet.start(b"a")
    fleet.say(b"a", "x", token_ids=(1,))
    fleet.lose(b"a")
    fleet.join("plain")
    fleet.ask("new")
    assert fleet.at(b"plain") == ["new"]
    fleet.finish(b"b")
    assert fleet.at(b"b")[-1] == "stream-0"
    assert fleet.last(b"b").resume_token_ids == (1,)


def test_who_waits_for_a_worker_that_sees_holds_up_nobody_nor_fills_the_line_for_them():
    fleet = Fleet(queue=QueueConfig(max_requests=2))
    fleet.join("eye", modalities=SEES)
    fleet.join("a")
    busy(fleet, "eye")
    seeing = [fleet.ask(f"picture-{number}", parts=(b"png",)) for number in range(2)]
    fleet.ask("words")
    assert fleet.at(b"a") == ["words"]
    fleet.finish(b"eye")
    assert fleet.at(b"eye")[-1] == "picture-0"
    assert [outlet.ends for outlet in seeing] == [0, 0]


def test_who_can_go_anywhere_does_not_take_the_place_before_its_turn():
    """The one that sees came first, and the worker that sees is the one that becomes free."""
    fleet = Fleet()
    fleet.join("eye", modalities=SEES)
    fleet.join("a")
    busy(fleet, "eye")
    busy(fleet, "a")
    fleet.ask("picture", parts=(b"png",))
    fleet.ask("words")
    fleet.finish(b"eye")
    assert fleet.at(b"eye")[-1] == "picture"
    assert "words" not in fleet.at(b"a")


CARDS = [{}, {"can_resume": True}, {"modalities": SEES}, {"can_resume": True, "modalities": SEES}]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(["", "0", "1"]), st.booleans(), st.sampled_from("xy")),
        st.tuples(st.just("finish"), st.integers(0, 3)),
    ),
    max_size=60,
)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(CARDS), min_size=2, max_size=4), STEPS)
def test_no_place_stays_free_while_anybody_waits_who_can_have_it(cards, steps):
    fleet = Fleet()
    for number, card in enumerate(cards):
        fleet.join(str(number), **card)
    at: dict[bytes, str] = {}
    for count, (what, *rest) in enumerate(steps):
        if what == "ask":
            only, sees, tenant = rest
            parts = (b"png",) if sees and any("modalities" in card for card in cards) else ()
            fleet.ask(f"r{count}", only=only, parts=parts, tenant=tenant)
        elif (connection := str(rest[0]).encode()) in at:
            fleet.finish(connection, at.pop(connection))
        for connection in fleet.registry.connections():
            if connection not in at and fleet.at(connection):
                last = fleet.last(connection).request_id
                if last in {flight.request_id for flight in fleet.dispatcher.flights.at(connection)}:
                    fleet.start(connection)
                    at[connection] = last
        free = [view for view in fleet.registry.views() if view.taken < view.places]
        waiting = [flight for flight in fleet.dispatcher.flights if not flight.connection]
        assert not [one.request_id for one in waiting if any(one.needs.met_by(view) for view in free)]
