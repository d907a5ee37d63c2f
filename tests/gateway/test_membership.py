"""Who is taken into the fleet, who is refused, and how somebody leaves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway import status
from gateway.flight import Sent
from gateway.membership import MOST_WORKERS
from protocol.api_keys import ApiKey, now
from protocol.config import ModelConfig, QueueConfig, WorkerConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Abort, Goodbye, Heartbeat, Ping, Tokenize, Unknown, Welcome, WhoAreYou
from protocol.values import Timings
from tests.gateway.fleet import Fleet, hello


def test_hello_is_answered_with_welcome():
    fleet = Fleet()
    fleet.join("a")
    (welcome,) = fleet.wire.to(b"a", Welcome)
    assert (welcome.gateway_id, welcome.refused) == ("gw", "")


def test_an_unknown_peer_is_asked_once_in_a_while():
    fleet = Fleet()
    for _ in range(3):
        fleet.receive(b"x", Heartbeat(state="ready"))
    assert len(fleet.wire.to(b"x", WhoAreYou)) == 1
    fleet.now += 0.6
    fleet.receive(b"x", Heartbeat(state="ready"))
    assert len(fleet.wire.to(b"x", WhoAreYou)) == 2


def test_another_major_is_refused_and_a_newer_minor_is_not():
    fleet = Fleet()
    fleet.receive(b"x", hello("x", protocol=(2, 0)))
    assert "2.0" in fleet.wire.to(b"x", Welcome)[0].refused
    fleet.receive(b"x", Heartbeat(state="ready"))
    assert fleet.wire.to(b"x", WhoAreYou) == []
    assert list(fleet.registry.views()) == []
    fleet.receive(b"y", hello("y", protocol=(1, 9)))
    assert fleet.wire.to(b"y", Welcome)[0].refused == ""


def test_a_fake_engine_is_refused_on_an_open_gateway():
    fleet = Fleet(takes_fakes=False)
    fleet.join("x", engine="fake")
    assert "allow_fake" in fleet.wire.to(b"x", Welcome)[0].refused


def with_fingerprint(name, fingerprint, **fields):
    message = hello(name, **fields)
    return replace(message, card=replace(message.card, fingerprint=fingerprint, model_path=f"/models/{name}"))


def test_a_replica_with_another_fingerprint_is_refused_and_shown():
    """FC-94: one name, one model."""
    fleet = Fleet()
    fleet.receive(b"a", with_fingerprint("a", "1" * 64))
    fleet.receive(b"b", hello("b", state="loading"))
    assert fleet.registry.at(b"b") is not None
    fleet.receive(b"b", with_fingerprint("b", "2" * 64))
    refused = fleet.wire.to(b"b", Welcome)[-1].refused
    for words in ("'a'", "'b'", "1" * 16, "2" * 16, "/models/a on ", "/models/b on ", "served_name"):
        assert words in refused
    fleet.receive(b"b", Heartbeat(state="ready"))
    assert fleet.registry.at(b"b") is None
    shown = {worker["id"]: worker for worker in shown_workers(fleet)}
    assert (shown["b"]["state"], shown["b"]["detail"]) == ("stopped", "refused")
    assert shown["b"]["last_error"] == refused
    assert shown["a"]["last_error"] == ""


def test_a_worker_that_is_refused_from_the_first_is_shown_too():
    config = WorkerConfig(id="b", model="m")
    fleet = Fleet(workers=(config,))
    fleet.receive(b"a", with_fingerprint("a", "1"))
    fleet.receive(b"b", with_fingerprint("b", "2"))
    (worker,) = [worker for worker in shown_workers(fleet) if worker["id"] == "b"]
    assert "different models" in worker["last_error"]


def test_a_refused_replica_is_taken_when_the_other_one_is_gone():
    fleet = Fleet()
    fleet.receive(b"a", with_fingerprint("a", "1"))
    fleet.receive(b"b", with_fingerprint("b", "2"))
    fleet.receive(b"a", Goodbye(reason="x"))
    fleet.now += 60
    fleet.receive(b"b", Heartbeat(state="ready"))
    assert len(fleet.wire.to(b"b", WhoAreYou)) == 1
    fleet.receive(b"b", with_fingerprint("b", "2"))
    assert fleet.wire.to(b"b", Welcome)[-1].refused == ""
    assert [worker["last_error"] for worker in shown_workers(fleet)] == [""]


@pytest.mark.parametrize(("ours", "theirs"), [("1", "1"), (None, "1"), ("1", None), (None, None)])
def test_like_or_unknown_fingerprints_are_taken(ours, theirs):
    fleet = Fleet()
    fleet.receive(b"a", with_fingerprint("a", ours))
    fleet.receive(b"b", with_fingerprint("b", theirs))
    assert fleet.wire.to(b"b", Welcome)[-1].refused == ""


def test_other_names_and_the_worker_itself_may_change_their_model():
    fleet = Fleet()
    fleet.receive(b"a", with_fingerprint("a", "1"))
    fleet.receive(b"b", with_fingerprint("b", "2", model="other"))
    fleet.receive(b"c", with_fingerprint("a", "3", incarnation="2"))
    assert fleet.wire.to(b"b", Welcome)[-1].refused == ""
    assert fleet.wire.to(b"c", Welcome)[-1].refused == ""


def shown_workers(fleet):
    registry = fleet.registry
    return status.workers(
        fleet.catalog.configured,
        registry.views(),
        registry.strangers.refusals(),
        lambda view: fleet.dispatcher.breakers.state(view, fleet.now),
        fleet.now,
    )


def test_speed_and_first_token_are_shown_once_they_are_known_and_are_the_process_own():
    fleet = Fleet()
    fleet.join("a")
    assert [worker["first_token_s"] for worker in shown_workers(fleet)] == [None]
    fleet.ask("r")
    fleet.start(b"a")
    fleet.finish(b"a", timings=Timings(queued_s=0.25, prefill_s=0.5, decode_s=9.0))
    fleet.receive(b"a", Heartbeat(state="ready", decode_tokens_per_s=31.04))
    (shown,) = shown_workers(fleet)
    assert (shown["first_token_s"], shown["decode_tokens_per_s"], shown["restarts"]) == (0.75, 31.0, 0)
    fleet.receive(b"b", hello("a", incarnation="2"))
    (shown,) = shown_workers(fleet)
    assert (shown["first_token_s"], shown["decode_tokens_per_s"], shown["restarts"]) == (None, 0.0, 1)


def test_an_older_process_does_not_replace_a_newer_one():
    fleet = Fleet()
    fleet.receive(b"new", hello("w", incarnation="2"))
    fleet.receive(b"old", hello("w", incarnation="1"))
    assert "newer" in fleet.wire.to(b"old", Welcome)[0].refused
    assert fleet.registry.at(b"new") is not None


def test_after_the_clock_was_set_back_a_new_process_is_taken_once_the_one_before_is_gone():
    fleet = Fleet()
    fleet.receive(b"before", hello("w", incarnation="2"))
    fleet.wire.outcome[b"before"] = Sent.LOST
    fleet.receive(b"after", hello("w", incarnation="1"))
    assert fleet.wire.to(b"after", Welcome)[0].refused == ""
    assert fleet.registry.at(b"after") is not None


def test_after_the_clock_was_set_back_a_process_that_fell_silent_is_in_the_way_for_a_while_only():
    fleet = Fleet()
    fleet.receive(b"before", hello("w", incarnation="2"))
    fleet.receive(b"after", hello("w", incarnation="1"))
    assert fleet.registry.at(b"after") is None
    fleet.now += 11.0  # longer than lost_s
    fleet.membership.tick(fleet.now)
    fleet.receive(b"after", Heartbeat(state="ready"))
    assert len(fleet.wire.to(b"after", WhoAreYou)) == 1
    fleet.receive(b"after", hello("w", incarnation="1"))
    assert fleet.registry.at(b"after") is not None


def test_a_newer_process_replaces_the_older_and_its_requests_move():
    fleet = Fleet()
    fleet.receive(b"old", hello("w", incarnation="1"))
    fleet.ask("r")
    fleet.start(b"old")
    fleet.receive(b"new", hello("w", incarnation="2"))
    assert fleet.registry.at(b"old") is None
    assert fleet.last(b"new").attempt == 1
    fleet.receive(b"old", Heartbeat(state="ready"))
    assert fleet.wire.to(b"old", WhoAreYou) == []


def test_a_process_that_connects_again_begins_its_requests_anew():
    fleet = Fleet()
    fleet.receive(b"1", hello("w"))
    fleet.ask("r")
    fleet.start(b"1")
    fleet.receive(b"2", hello("w"))
    kinds = [type(message) for to, message in fleet.wire.sent if to == b"2"]
    assert kinds.index(Abort) < len(kinds) - 1
    assert fleet.last(b"2").attempt == 1


def test_a_second_hello_renews_the_card_and_keeps_the_load():
    fleet = Fleet()
    fleet.join("a", state="loading")
    fleet.beat(b"a", "ready", running=1)
    fleet.join("a", slots=5, aliases=("x",))
    view = fleet.registry.at(b"a")
    assert view is not None
    assert (view.load.running, view.capacity.max_num_seqs, view.card.aliases) == (1, 5, ("x",))


def test_a_ping_finds_who_is_gone():
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.wire.outcome[b"a"] = Sent.LOST
    fleet.membership.ping(fleet.now)
    assert fleet.registry.at(b"a") is None
    assert len(fleet.wire.to(b"b", Ping)) == 1


def test_silence_is_a_loss_and_any_word_is_life():
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.pass_time(9, beating=(b"b",))
    fleet.pass_time(2)
    assert fleet.registry.at(b"a") is None
    assert fleet.registry.at(b"b") is not None


def test_a_goodbye_forgets_a_worker_that_is_not_configured():
    fleet = Fleet()
    fleet.join("a")
    fleet.receive(b"a", Goodbye(reason="drained"))
    assert fleet.catalog.models() == {}


def test_a_lost_worker_is_remembered_for_a_while():
    fleet = Fleet()
    fleet.join("a")
    fleet.lose(b"a")
    fleet.pass_time(100)
    assert list(fleet.catalog.models()) == ["m"]
    fleet.pass_time(300)
    assert fleet.catalog.models() == {}


def test_a_model_is_unready_until_one_of_its_workers_is_ready():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"), WorkerConfig(id="b", model="m")))
    assert fleet.catalog.unready() == ["m"]
    fleet.join("a", state="loading")
    assert fleet.catalog.unready() == ["m"]
    fleet.beat(b"a", "ready")
    assert fleet.catalog.unready() == []


def test_a_model_is_unready_while_all_its_workers_hang():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"), WorkerConfig(id="b", model="m")))
    fleet.join("a", "b")
    fleet.receive(b"a", Heartbeat(state="ready", step_age_s=31.0))
    assert fleet.catalog.unready() == []
    fleet.receive(b"b", Heartbeat(state="ready", step_age_s=31.0))
    assert fleet.catalog.unready() == ["m"]
    fleet.beat(b"b", "ready")
    assert fleet.catalog.unready() == []


def test_a_key_for_a_pattern_of_names_may_use_the_model_that_it_means():
    fleet = Fleet()
    fleet.join("a", model="m")
    fleet.join("b", model="other")
    fleet.catalog.rules = (ModelConfig(name="m", patterns=("claude-*",)),)
    for rule in ("claude-*", "claude-x"):
        key = ApiKey(name="k", secrets=(), created=now(), models=(rule,))
        assert fleet.catalog.named("claude-x", key) == "m"
        with pytest.raises(ClusterError, match="may not use"):
            fleet.catalog.named("other", key)
    with pytest.raises(ClusterError, match="may not use"):
        fleet.catalog.named("claude-y", key)


def test_aliases_of_a_configured_worker_are_those_of_the_configuration():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m", aliases=("new",)),))
    fleet.join("a", aliases=("old",))
    fleet.join("b", model="other", aliases=("its-own",))
    assert fleet.catalog.models() == {"m": ["new"], "other": ["its-own"]}


def test_slots_are_those_of_workers_that_are_there_and_of_those_to_come():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m", max_num_seqs=4), WorkerConfig(id="b", model="x")))
    assert fleet.catalog.slots("m") == 4
    fleet.join("a", slots=6, gateways=2)
    fleet.join("c", slots=5)
    assert fleet.catalog.slots("m") == 3 + 5
    fleet.lose(b"c")
    assert fleet.catalog.slots("m") == 3


def test_messages_that_are_not_for_a_gateway_are_counted_and_ignored():
    fleet = Fleet()
    fleet.join("a")
    fleet.receive(b"a", Unknown(tag="Future"))
    fleet.receive(b"a", Tokenize(request_id="r"))
    assert fleet.membership.ignored == 2


def test_a_connection_keeps_its_worker_id():
    fleet = Fleet()
    fleet.join("a")
    fleet.receive(b"a", hello("b"))
    assert "belongs to one worker" in fleet.wire.to(b"a", Welcome)[-1].refused
    assert [view.worker_id for view in fleet.registry.views()] == ["a"]


def test_a_flood_of_new_workers_is_bounded_and_lost_ones_make_room():
    fleet = Fleet(workers=(WorkerConfig(id="mine", model="m"),))
    for number in range(MOST_WORKERS):
        fleet.receive(b"%d" % number, hello(f"w-{number}"))
    fleet.receive(b"x", hello("x"))
    assert "one too many" in fleet.wire.to(b"x", Welcome)[-1].refused
    fleet.receive(b"mine", hello("mine"))
    fleet.receive(b"0", hello("w-0", slots=3))
    assert not fleet.wire.to(b"mine", Welcome)[-1].refused
    assert not fleet.wire.to(b"0", Welcome)[-1].refused
    fleet.lose(b"1")
    fleet.lose(b"2")
    fleet.receive(b"y", hello("y"))
    assert not fleet.wire.to(b"y", Welcome)[-1].refused


def test_bytes_that_are_no_message_end_what_their_sender_had_and_it_may_come_back():
    fleet = Fleet()
    fleet.join("a")
    outlet = fleet.ask("r")
    fleet.start(b"a")
    fleet.say(b"a", "half")
    fleet.membership.malformed(b"a", fleet.now)
    assert outlet.code == "worker_lost"
    assert [abort.request_id for abort in fleet.wire.to(b"a", Abort)] == ["r"]
    fleet.beat(b"a")
    assert len(fleet.wire.to(b"a", WhoAreYou)) == 1
    fleet.join("a")
    assert fleet.registry.at(b"a") is not None


def test_a_silent_worker_is_told_to_end_what_goes_on_elsewhere():
    fleet = Fleet()
    fleet.join("a", "b")
    fleet.ask("r")
    (at,) = [c for c in (b"a", b"b") if fleet.at(c)]
    other = b"b" if at == b"a" else b"a"
    fleet.accept(at)
    fleet.pass_time(6, beating=(other,))
    fleet.pass_time(5, beating=(other,))
    assert [abort.request_id for abort in fleet.wire.to(at, Abort)] == ["r"]
    assert fleet.at(other) == ["r"]


def test_a_configured_worker_that_never_comes_is_waited_for_only_for_a_while():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"),), queue=QueueConfig(timeout_s=300))
    early = fleet.ask("r1")
    fleet.pass_time(59)
    assert early.code == ""
    fleet.pass_time(2)
    assert early.code == "no_worker_available"
    with pytest.raises(ClusterError, match="no worker for 'm' runs") as caught:
        fleet.ask("r2")
    assert caught.value.code is ErrorCode.NO_WORKER_AVAILABLE
    fleet.join("a")
    assert fleet.ask("r3").code == ""


def test_a_worker_that_left_is_expected_back():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"),), queue=QueueConfig(timeout_s=300))
    fleet.join("a")
    fleet.pass_time(100, beating=(b"a",))
    fleet.receive(b"a", Goodbye(reason="asked to restart"))
    waiting = fleet.ask("r1")
    fleet.pass_time(55)
    assert waiting.code == ""
    fleet.pass_time(10)
    assert waiting.code == "no_worker_available"


def test_a_worker_that_is_new_in_the_configuration_is_expected_from_then_on():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"),))
    fleet.pass_time(100)
    fleet.catalog.configure((WorkerConfig(id="a", model="m"), WorkerConfig(id="b", model="n")), fleet.now)
    assert fleet.catalog.is_hopeless("m", fleet.now)
    assert not fleet.catalog.is_hopeless("n", fleet.now)


def test_a_worker_that_somebody_starts_again_is_expected_from_then_on():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"),))
    fleet.catalog.mark_down({"a"}, fleet.now)
    assert fleet.catalog.is_hopeless("m", fleet.now)
    fleet.pass_time(1000)
    fleet.catalog.mark_down(set(), fleet.now)
    assert not fleet.catalog.is_hopeless("m", fleet.now)
    fleet.pass_time(61)
    assert fleet.catalog.is_hopeless("m", fleet.now)


def test_without_a_supervisor_nobody_waits_for_a_worker_that_does_not_run():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"), WorkerConfig(id="b", model="n")))
    fleet.join("a")
    fleet.catalog.mark_unattended({"b"}, fleet.now)
    assert not fleet.catalog.is_hopeless("m", fleet.now)
    assert fleet.catalog.is_hopeless("n", fleet.now)
    waiting = fleet.ask("r1")
    fleet.membership.lost(b"a", fleet.now, "killed")
    fleet.pass_time(1)
    assert waiting.code == ""
    fleet.catalog.mark_unattended({"a", "b"}, fleet.now)
    fleet.pass_time(1)
    assert waiting.code == "no_worker_available"


def test_a_supervisor_that_comes_starts_what_is_away():
    fleet = Fleet(workers=(WorkerConfig(id="a", model="m"),))
    fleet.catalog.mark_unattended({"a"}, fleet.now)
    fleet.pass_time(1000)
    fleet.catalog.mark_unattended(set(), fleet.now)
    assert not fleet.catalog.is_hopeless("m", fleet.now)
    fleet.pass_time(61)
    assert fleet.catalog.is_hopeless("m", fleet.now)


def test_a_place_is_waited_for_while_a_request_stands_in_a_line():
    fleet = Fleet()
    fleet.join("a")
    fleet.ask("1")
    told = [fleet.membership.is_waited_for]
    fleet.ask("2")
    told.append(fleet.membership.is_waited_for)
    fleet.dispatcher.cancel("2", fleet.now)
    told.append(fleet.membership.is_waited_for)
    assert told == [False, True, False]
