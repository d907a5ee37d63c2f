"""The life of a request: chosen, rejected, queued, retried, lost, ended exactly once."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.flight import Sent
from protocol.config import QueueConfig, RoutingConfig, WorkerConfig
from protocol.errors import ClusterError
from protocol.messages import Abort, Goodbye
from protocol.wire_keys import AllowList
from tests.gateway.fleet import Fleet, Outlet, hello

CONFIGURED = (WorkerConfig(id="a", model="m"),)


def refused(fleet: Fleet, request_id: str = "x", **fields: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        fleet.ask(request_id, **fields)
    return caught.value


def test_the_straight_path():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.start(b"a")
    fleet.say(b"a", "hi")
    fleet.finish(b"a")
    assert (outlet.workers, outlet.text, outlet.ends, outlet.error) == (["a"], "hi", 1, None)
    assert fleet.counts == (0, 0)


def test_a_rejection_leads_to_the_other_worker_at_once_and_is_counted():
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.ask("r")
    first, second = (b"a", b"b") if fleet.at(b"a") else (b"b", b"a")
    fleet.reject(first, running=1)
    assert fleet.at(second) == ["r"]
    assert fleet.last(second).attempt == 0  # nothing was begun: it is no retry
    view = fleet.registry.at(first)
    assert view is not None
    assert view.rejected == 1


def test_after_so_many_rejections_it_waits():
    fleet = Fleet(routing=RoutingConfig(busy_tries=2))
    fleet.join("a", "b", "c")
    fleet.ask("r")
    for _ in range(2):
        asked = next(c for c in (b"a", b"b", b"c") if fleet.at(c) and not fleet.registry.at(c).rejected)  # type: ignore[union-attr]
        fleet.reject(asked, running=1)
    assert fleet.counts == (0, 1)
    assert sum(len(fleet.at(c)) for c in (b"a", b"b", b"c")) == 2


def test_a_worker_that_rejected_is_left_alone_until_it_reports():
    fleet = Fleet()
    fleet.join("a", slots=4)
    fleet.ask("r")
    fleet.reject(b"a")
    assert fleet.counts == (0, 1)
    fleet.pass_time(0.1)
    assert fleet.at(b"a") == ["r"]
    fleet.beat(b"a")
    assert fleet.at(b"a") == ["r", "r"]


def test_a_worker_that_rejected_is_asked_again_after_the_pause():
    fleet = Fleet()
    fleet.join("a", slots=4)
    fleet.ask("r")
    fleet.reject(b"a")
    fleet.pass_time(0.3)
    assert fleet.at(b"a") == ["r", "r"]


def test_dispatches_that_are_not_confirmed_count():
    fleet = Fleet()
    fleet.join("a", slots=2)
    for request_id in ("1", "2", "3"):
        fleet.ask(request_id)
    assert fleet.at(b"a") == ["1", "2"]
    assert fleet.counts == (2, 1)


def test_a_finish_wakes_the_queue_in_order():
    fleet = Fleet()
    fleet.join("a")
    for request_id in ("1", "2", "3"):
        fleet.ask(request_id)
    fleet.start(b"a")
    fleet.finish(b"a")
    assert fleet.at(b"a") == ["1", "2"]
    fleet.start(b"a")
    fleet.finish(b"a")
    assert fleet.at(b"a") == ["1", "2", "3"]


def test_newcomers_stand_behind_those_who_wait():
    fleet = Fleet()
    fleet.join("a")
    fleet.ask("1")
    fleet.reject(b"a", running=1)
    fleet.ask("2")
    fleet.beat(b"a")
    assert fleet.at(b"a") == ["1", "1"]
    assert fleet.counts == (1, 1)


def test_who_is_rejected_again_keeps_its_place():
    fleet = Fleet()
    fleet.join("a")
    for request_id in ("1", "2", "3"):
        fleet.ask(request_id)
    fleet.start(b"a")
    fleet.finish(b"a")
    fleet.reject(b"a", running=1)
    fleet.beat(b"a")
    assert fleet.at(b"a") == ["1", "2", "2"]


def test_a_full_queue_refuses_at_once_and_says_when():
    fleet = Fleet(queue=QueueConfig(max_requests=1))
    fleet.join("a")
    fleet.ask("1")
    fleet.ask("2")
    error = refused(fleet, "3")
    assert error.code == "overloaded"
    assert error.retry_after_s is not None
    assert 0.8 <= error.retry_after_s <= 36
    assert fleet.counts == (1, 1)


def test_further_answers_of_a_request_that_waits_wait_too_however_long_the_line_is():
    fleet = Fleet(queue=QueueConfig(max_requests=1))
    fleet.join("a")
    fleet.ask("1")
    first, second = fleet.ask("2"), fleet.ask("2.1", further=True)
    assert fleet.counts == (1, 2)
    assert refused(fleet, "3").code == "overloaded"
    assert (first.ends, second.ends) == (0, 0)


def test_a_request_that_waits_too_long_is_told_so():
    fleet = Fleet()
    fleet.join("a")
    fleet.ask("1")
    waiting = fleet.ask("2")
    fleet.start(b"a")
    fleet.pass_time(59, beating=(b"a",))
    assert waiting.ends == 0
    fleet.pass_time(2, beating=(b"a",))
    assert waiting.code == "queue_timeout"
    assert fleet.counts == (1, 0)


def test_the_time_limit_follows_the_service_time():
    fleet = Fleet(queue=QueueConfig(timeout_s=1.0))
    fleet.join("a")
    fleet.ask("1")
    fleet.start(b"a")
    fleet.pass_time(5, beating=(b"a",))
    fleet.finish(b"a")
    fleet.ask("2")
    waiting = fleet.ask("3")
    fleet.start(b"a")
    fleet.pass_time(9, beating=(b"a",))
    assert waiting.ends == 0
    fleet.pass_time(2, beating=(b"a",))
    assert waiting.code == "queue_timeout"


def test_a_request_whose_time_is_over_is_aborted():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r", time_left_s=5.0)
    assert fleet.last(b"a").time_left_s == 5.0
    fleet.start(b"a")
    fleet.pass_time(6, beating=(b"a",))
    assert outlet.code == "deadline_exceeded"
    assert [a.request_id for a in fleet.wire.to(b"a", Abort)] == ["r"]


def test_a_loss_before_the_first_delta_is_retried_elsewhere():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.start(b"a")
    fleet.join("b")
    fleet.lose(b"a")
    assert fleet.last(b"b").attempt == 1
    fleet.start(b"b")
    fleet.say(b"b", "saved")
    fleet.finish(b"b")
    assert (outlet.text, outlet.error) == ("saved", None)


def test_a_lost_request_waits_for_the_restart_ahead_of_all_beyond_the_queues_limits():
    fleet = Fleet(queue=QueueConfig(max_requests=1, timeout_s=1.0), workers=CONFIGURED)
    fleet.join("a")
    lost = fleet.ask("1")
    fleet.start(b"a")
    fleet.ask("2")
    fleet.lose(b"a")
    assert fleet.counts == (0, 2)
    fleet.pass_time(50)
    assert lost.ends == 0
    assert fleet.counts == (0, 1)
    fleet.receive(b"a2", hello("a", incarnation="2"))
    assert fleet.at(b"a2") == ["1"]


def test_a_loss_after_the_first_delta_ends_the_request():
    fleet = Fleet()
    fleet.join("a", "b")
    outlet = fleet.ask("r")
    holder = b"a" if fleet.at(b"a") else b"b"
    fleet.start(holder)
    fleet.say(holder, "half")
    fleet.lose(holder)
    assert outlet.code == "worker_lost"
    assert fleet.counts == (0, 0)


def _died_at_a_and_now_at_b(*, remote: bool = False) -> tuple[Fleet, Outlet]:
    """The request `r`; a third worker is there. Workers that are `remote` come over a network."""
    fleet = Fleet()
    if remote:
        fleet.keys = {b"a": "key-a", b"b": "key-b", b"c": "key-c"}
        fleet.membership.guard.allowed = AllowList({"a": "key-a", "b": "key-b", "c": "key-c"})
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.start(b"a")
    fleet.join("b")
    fleet.lose(b"a")
    fleet.join("c")
    return fleet, outlet


@pytest.mark.parametrize("remote", [False, True])
def test_poison_is_not_given_to_a_third_worker(remote: bool):
    fleet, outlet = _died_at_a_and_now_at_b(remote=remote)
    fleet.accept(b"b")
    fleet.lose(b"b")
    assert outlet.code == "poison_request"
    assert fleet.at(b"c") == []


def test_poison_that_kills_before_a_word_of_it_is_out_is_not_given_to_a_third_worker():
    fleet, outlet = _died_at_a_and_now_at_b()
    fleet.lose(b"b")
    assert outlet.code == "poison_request"
    assert fleet.at(b"c") == []


def test_a_remote_worker_that_never_said_to_have_a_request_did_not_die_of_it():
    fleet, outlet = _died_at_a_and_now_at_b(remote=True)
    fleet.lose(b"b")
    assert outlet.code == ""
    assert fleet.at(b"c") == ["r"]


def test_a_cut_that_silences_all_workers_sends_no_request_from_one_to_the_next():
    fleet = Fleet(workers=CONFIGURED)
    fleet.join("a", "b", "c", "d")
    outlet = fleet.ask("r")
    asked = next(c for c in (b"a", b"b", b"c", b"d") if fleet.at(c))
    fleet.accept(asked)
    fleet.pass_time(11.0)
    assert sum(len(fleet.at(c)) for c in (b"a", b"b", b"c", b"d")) == 1
    assert (outlet.code, fleet.counts) == ("", (0, 1))
    fleet.join("a", incarnation="2")
    assert fleet.last(b"a").attempt == 1


def test_a_failed_engine_is_tried_once_more_and_not_again():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.fail(b"a", "engine_failed")
    assert fleet.last(b"a").attempt == 1
    fleet.fail(b"a", "engine_failed", "again")
    assert outlet.code == "engine_failed"
    view = fleet.registry.at(b"a")
    assert view is not None
    assert view.last_error == "again"


def test_the_clients_own_mistake_is_not_retried():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.fail(b"a", "context_length_exceeded")
    assert outlet.code == "context_length_exceeded"
    assert outlet.error is not None
    assert outlet.error.param == "messages"


def test_a_worker_that_does_not_answer_though_it_beats_is_given_up():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.join("b")
    fleet.pass_time(6, beating=(b"a", b"b"))
    assert [a.request_id for a in fleet.wire.to(b"a", Abort)] == ["r"]
    assert fleet.last(b"b").attempt == 1
    fleet.say(b"a", "late")
    fleet.start(b"b")
    fleet.say(b"b", "right")
    assert outlet.text == "right"


def test_an_accepted_request_may_take_its_time():
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.ask("r")
    holder = b"a" if fleet.at(b"a") else b"b"
    fleet.accept(holder)
    fleet.pass_time(100, beating=(b"a", b"b"))
    assert fleet.wire.to(holder, Abort) == []


@pytest.mark.parametrize("phase", ["queued", "sent", "accepted", "talking"])
def test_cancel_frees_everything_in_every_phase(phase: str):
    fleet = Fleet()
    fleet.join("a")
    if phase == "queued":
        fleet.beat(b"a", running=1)
    fleet.ask("r")
    if phase == "accepted":
        fleet.accept(b"a")
    if phase == "talking":
        fleet.start(b"a")
        fleet.say(b"a", "x")
    for _ in range(2):
        fleet.dispatcher.cancel("r", fleet.now)
    assert fleet.counts == (0, 0)
    assert len(fleet.wire.to(b"a", Abort)) == (phase != "queued")
    view = fleet.registry.at(b"a")
    assert view is not None
    assert view.unconfirmed == 0
    assert view.taken == (phase == "queued")


def test_a_cancelled_request_makes_room_at_once():
    fleet = Fleet()
    fleet.join("a")
    fleet.ask("1")
    fleet.start(b"a")
    fleet.ask("2")
    fleet.dispatcher.cancel("1", fleet.now)
    assert fleet.at(b"a") == ["1", "2"]


def test_an_abort_that_found_a_full_pipe_is_sent_later():
    fleet = Fleet()
    fleet.join("a")
    fleet.ask("r")
    fleet.wire.outcome[b"a"] = Sent.BUSY
    fleet.dispatcher.cancel("r", fleet.now)
    assert fleet.wire.to(b"a", Abort) == []
    del fleet.wire.outcome[b"a"]
    fleet.pass_time(0.1)
    assert [a.request_id for a in fleet.wire.to(b"a", Abort)] == ["r"]


@pytest.mark.parametrize("outcome", [Sent.BUSY, Sent.LOST])
def test_a_worker_that_cannot_be_sent_to_is_passed_over(outcome: Sent):
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.wire.outcome[b"a"] = outcome
    fleet.ask("1")
    assert fleet.at(b"b") == ["1"]


def test_unknown_models_are_404_and_configured_ones_wait():
    fleet = Fleet(workers=CONFIGURED)
    assert refused(fleet, model="nothing").code == "model_not_found"
    fleet.ask("r")
    assert fleet.counts == (0, 1)
    fleet.join("a", state="loading")
    assert fleet.counts == (0, 1)
    fleet.beat(b"a", "ready")
    assert fleet.at(b"a") == ["r"]


def test_a_worker_that_failed_is_waited_for_until_nobody_will_start_it():
    fleet = Fleet(workers=CONFIGURED)
    fleet.join("a", state="loading")
    waiting = fleet.ask("1")
    fleet.beat(b"a", "failed")
    fleet.receive(b"a", Goodbye(reason="broken"))
    assert waiting.code == ""
    fleet.catalog.mark_down({"a"}, fleet.now)
    fleet.pass_time(0.2)
    assert waiting.code == "no_worker_available"
    assert refused(fleet, "2").code == "no_worker_available"
    assert fleet.counts == (0, 0)


def test_a_killed_worker_that_nobody_will_start_is_not_waited_for():
    fleet = Fleet(workers=CONFIGURED)
    fleet.join("a")
    fleet.lose(b"a")
    fleet.catalog.mark_down({"a"}, fleet.now)
    assert refused(fleet, "1").code == "no_worker_available"
    assert fleet.catalog.unready() == []


def test_a_model_whose_unconfigured_workers_failed_is_refused_and_those_who_wait_are_told():
    fleet = Fleet()
    fleet.join("a", state="loading")
    waiting = fleet.ask("1")
    fleet.beat(b"a", "failed")
    assert waiting.code == "no_worker_available"
    assert refused(fleet, "2").code == "no_worker_available"
    assert fleet.counts == (0, 0)


def test_a_draining_worker_gets_nothing_new():
    fleet = Fleet()
    fleet.join("a", slots=4)
    fleet.beat(b"a", "draining")
    fleet.ask("r")
    assert fleet.at(b"a") == []


_steps = st.lists(
    st.tuples(
        st.sampled_from(
            ("ask", "accept", "reject", "start", "say", "finish", "fail", "lose", "join", "cancel", "time")
        ),
        st.sampled_from((b"a", b"b")),
        st.integers(0, 30),
    ),
    max_size=60,
)


def _step(
    fleet: Fleet, outlets: dict[str, Outlet], cancelled: set[str], step: tuple[str, bytes, int]
) -> None:
    verb, connection, number = step
    if verb == "ask":
        request_id = f"r{len(outlets)}-{len(cancelled)}"
        with contextlib.suppress(ClusterError):
            outlets[request_id] = fleet.ask(request_id, time_left_s=60.0)
    elif verb == "cancel":
        if f"r{number}-0" in outlets:
            fleet.dispatcher.cancel(f"r{number}-0", fleet.now)
            if not outlets[f"r{number}-0"].ends:
                cancelled.add(f"r{number}-0")
    elif verb == "time":
        fleet.pass_time(number)
    elif verb == "join":
        fleet.join(connection.decode(), slots=2)
    elif verb == "lose":
        fleet.lose(connection)
    elif fleet.at(connection):
        extra = {"say": ("x",), "fail": ("engine_failed",)}.get(verb, ())
        getattr(fleet, verb)(connection, *extra)


@settings(max_examples=150, deadline=None)
@given(_steps)
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(steps):
    fleet = Fleet(queue=QueueConfig(max_requests=3), workers=CONFIGURED)
    fleet.join("a", "b", slots=2)
    outlets: dict[str, Outlet] = {}
    cancelled: set[str] = set()
    for step in steps:
        _step(fleet, outlets, cancelled, step)
        assert fleet.counts[1] <= len(outlets)
        assert all(view.unconfirmed >= 0 for view in fleet.registry.views())
    fleet.pass_time(1000)
    for request_id, outlet in outlets.items():
        assert outlet.ends == (request_id not in cancelled)
    assert fleet.counts == (0, 0)


def test_a_rejection_after_text_ends_the_request_and_doubles_nothing():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.start(b"a")
    fleet.say(b"a", "first")
    fleet.join("b")
    fleet.reject(b"a")
    assert (outlet.code, outlet.text, fleet.at(b"b")) == ("internal_error", "first", [])
    assert [abort.request_id for abort in fleet.wire.to(b"a", Abort)] == ["r"]
    assert fleet.counts == (0, 0)


def test_a_worker_cannot_speak_for_the_client_or_for_its_rights():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.accept(b"a")
    fleet.fail(b"a", "client_closed_request")
    assert outlet.code == "internal_error"


def test_a_probe_that_ended_with_its_connection_is_followed_by_another():
    fleet = Fleet()
    fleet.join("a", "b")
    view = fleet.registry.at(b"a")
    assert view is not None
    for _ in range(3):
        fleet.dispatcher.breakers.failed(view, fleet.now)
    fleet.ask("first")
    assert fleet.at(b"b") == ["first"]
    fleet.now = 7.0  # the breaker's pause is over
    fleet.join("b")
    fleet.ask("probe")
    assert fleet.at(b"a") == ["probe"]
    fleet.receive(b"again", hello("a"))
    assert fleet.at(b"again") == ["probe"]


def test_a_request_for_a_certain_worker_is_sent_to_no_other():
    fleet = Fleet()
    fleet.join("a", "b", slots=4)
    for number in range(4):
        fleet.ask(f"r{number}", only="b")
    assert (fleet.at(b"a"), len(fleet.at(b"b"))) == ([], 4)
    fleet.ask("r4", only="b")
    assert fleet.counts == (4, 1)
    fleet.finish(b"b")
    assert fleet.at(b"b")[-1] == "r4"
    assert fleet.at(b"a") == []


def test_a_request_for_a_certain_worker_passes_the_line_and_holds_nobody_up():
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.ask("1", only="a")
    fleet.ask("2", only="a")  # it waits for that one
    fleet.ask("3")
    assert fleet.at(b"b") == ["3"]
    fleet.ask("4")
    fleet.finish(b"b")
    assert fleet.at(b"b") == ["3", "4"]
    fleet.finish(b"a")
    assert fleet.at(b"a") == ["1", "2"]


def test_a_request_for_a_worker_that_is_not_there_is_refused():
    fleet = Fleet()
    fleet.join("a")
    fleet.join("b", model="other")
    for absent in ("b", "c"):
        assert "is connected" in str(refused(fleet, only=absent))
    assert refused(fleet, only="c").code == "no_worker_available"
    assert fleet.counts == (0, 0)
