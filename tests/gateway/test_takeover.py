"""A stream whose worker is lost goes on at another one, after the tokens that were shown."""

from __future__ import annotations

from protocol.config import ModelConfig, TakeoverConfig, WorkerConfig
from protocol.messages import Delta, Deltas, Goodbye
from tests.gateway.fleet import Fleet, Outlet


def streaming(*names: str, **tables: object) -> tuple[Fleet, Outlet, bytes, bytes]:
    """A fleet of two, a request of which two tokens came, where it is, and the other worker."""
    fleet = Fleet(**tables)  # type: ignore[arg-type]
    fleet.join("a", "b", can_resume=True, slots=2)
    outlet = fleet.ask("r")
    here, there = (b"a", b"b") if fleet.at(b"a") else (b"b", b"a")
    fleet.start(here)
    fleet.say(here, "one", token_ids=(1,))
    fleet.say(here, " two", token_ids=(2,))
    return fleet, outlet, here, there


def test_the_other_worker_goes_on_after_what_was_shown():
    fleet, outlet, here, there = streaming()
    fleet.lose(here)
    request = fleet.last(there)
    assert (request.resume_token_ids, request.attempt, request.seed) == ((1, 2), 1, 1)
    fleet.start(there)
    fleet.say(there, " three", token_ids=(3,))
    fleet.finish(there)
    assert (outlet.text, outlet.ends, outlet.error) == ("one two three", 1, None)
    assert (fleet.dispatcher.tally.takeovers, fleet.dispatcher.tally.retries) == ({"worker_lost": 1}, {})
    assert fleet.counts == (0, 0)


def test_a_worker_that_gives_its_streams_up_is_followed_too():
    for code in ("worker_lost", "shutting_down"):
        fleet, outlet, here, there = streaming()
        fleet.fail(here, code)
        assert fleet.last(there).resume_token_ids == (1, 2)
        assert outlet.error is None


def test_what_the_engine_fails_on_after_a_token_is_the_request_itself():
    fleet, outlet, here, there = streaming()
    fleet.fail(here, "engine_failed")
    assert outlet.code == "engine_failed"
    assert not fleet.at(there)


def test_no_number_of_losses_ends_it_while_it_moves_on():
    fleet, outlet, here, there = streaming()
    token = 3
    for _ in range(10):
        fleet.lose(here)
        fleet.start(there)
        fleet.say(there, "x", token_ids=(token,))
        token += 1
        fleet.join(here.decode(), can_resume=True, slots=2, incarnation=str(token))
        here, there = there, here
    assert fleet.last(here).resume_token_ids == tuple(range(1, token - 1))
    assert outlet.error is None


def test_two_workers_that_die_of_it_without_a_token_are_enough():
    fleet, outlet, here, there = streaming()
    fleet.lose(here)
    fleet.join("c", "d", can_resume=True)
    fleet.accept(there)
    fleet.lose(there)
    third = b"c" if fleet.at(b"c") else b"d"
    fleet.accept(third)
    fleet.lose(third)
    assert outlet.code == "poison_request"
    assert "2 workers ended" in outlet.error.message  # type: ignore[union-attr]


def test_deaths_without_a_token_count_only_in_a_row():
    fleet, outlet, here, there = streaming()
    for number in range(3, 9):
        fleet.lose(here)
        fleet.accept(there)
        fleet.join(here.decode(), can_resume=True, slots=2, incarnation=str(number))
        fleet.lose(there)  # before its first token
        fleet.start(here)
        fleet.say(here, "x", token_ids=(number,))
        fleet.join(there.decode(), can_resume=True, slots=2, incarnation=str(number))
    assert outlet.error is None
    assert fleet.counts == (1, 0)


def test_only_workers_that_can_go_on_are_asked():
    fleet, outlet, here, there = streaming()
    fleet.join("c")
    fleet.lose(there)
    fleet.lose(here)
    assert not fleet.at(b"c")
    assert fleet.counts == (0, 1)
    fleet.join(here.decode(), can_resume=True, incarnation="2")
    assert fleet.last(here).resume_token_ids == (1, 2)
    assert outlet.error is None


def test_where_nobody_comes_back_the_loss_is_told():
    fleet, outlet, here, there = streaming()
    fleet.receive(there, Goodbye(reason="stopped"))
    fleet.lose(here)
    assert outlet.error is None  # it may be starting again
    for _ in range(8):
        fleet.pass_time(10.0)
    assert outlet.code == "worker_lost"
    assert fleet.counts == (0, 0)


def test_a_worker_that_is_busy_passes_it_on():
    fleet, outlet, here, there = streaming()
    fleet.lose(here)
    fleet.reject(there, running=2)
    assert fleet.counts == (0, 1)
    fleet.beat(there)
    assert fleet.last(there).resume_token_ids == (1, 2)
    assert outlet.error is None


def test_it_can_be_switched_off_for_all_and_for_a_model():
    for tables in (
        {"takeover": TakeoverConfig(enabled=False)},
        {"models": (ModelConfig(name="m", takeover=False),)},
    ):
        fleet, outlet, here, there = streaming(**tables)
        fleet.catalog.rules = tables.get("models", ())  # type: ignore[assignment]
        fleet.lose(here)
        assert outlet.code == "worker_lost"
        assert not fleet.at(there)


def test_text_that_no_token_tells_of_cannot_be_gone_on_from():
    fleet, outlet, here, there = streaming()
    fleet.say(here, "held")
    fleet.lose(here)
    assert outlet.code == "worker_lost"
    assert not fleet.at(there)


def test_the_parts_of_one_step_belong_to_its_tokens():
    fleet, outlet, here, there = streaming()
    parts = (
        Delta(request_id="r", attempt=0, text=" three", token_ids=(3, 4)),
        Delta(request_id="r", attempt=0, reasoning="hm"),
    )
    fleet.receive(here, Deltas(deltas=parts))
    fleet.lose(here)
    assert fleet.last(there).resume_token_ids == (1, 2, 3, 4)
    assert outlet.error is None


def test_who_has_seen_nothing_begins_anew():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"),))
    fleet.join("a", "b", can_resume=True)
    fleet.ask("r")
    here, there = (b"a", b"b") if fleet.at(b"a") else (b"b", b"a")
    fleet.start(here)
    fleet.lose(here)
    assert fleet.last(there).resume_token_ids == ()
    assert (fleet.dispatcher.tally.takeovers, fleet.dispatcher.tally.retries) == ({}, {"worker_lost": 1})


def test_half_an_answer_does_not_wait_without_end():
    fleet, outlet, here, there = streaming()
    fleet.beat(there, state="draining")
    fleet.lose(here)
    fleet.pass_time(59.0, beating=(there,))
    assert (outlet.error, fleet.counts) == (None, (0, 1))
    fleet.pass_time(2.0, beating=(there,))
    assert outlet.code == "worker_lost"
