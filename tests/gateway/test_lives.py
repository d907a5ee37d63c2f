"""What is remembered of requests: where they went, why, and how they ended."""

from __future__ import annotations

from typing import Any

from gateway.lives import Lives
from protocol.config import QueueConfig
from tests.gateway.fleet import Fleet


def events(fleet: Fleet, request_id: str = "r") -> list[dict[str, Any]]:
    (life,) = fleet.dispatcher.lives.of(request_id)
    return list(life.told()["events"])


def story(fleet: Fleet, request_id: str = "r") -> list[tuple[str, str]]:
    return [(event["what"], event.get("worker", "")) for event in events(fleet, request_id)]


def test_a_request_that_is_rejected_waits_and_is_served():
    fleet = Fleet()
    fleet.join("a", max_waiting=1)
    fleet.ask("r")
    fleet.reject(b"a")
    fleet.pass_time(1, beating=(b"a",))
    fleet.start(b"a")
    fleet.pass_time(2, beating=(b"a",))
    fleet.finish(b"a")
    assert story(fleet) == [
        ("came", ""),
        ("sent", "a"),
        ("rejected", "a"),
        ("waits", ""),
        ("sent", "a"),
        ("began", "a"),
        ("finished", "a"),
    ]
    assert [event["after_s"] for event in events(fleet)] == [0, 0, 0, 0, 1.0, 1.0, 3.0]


def test_a_choice_tells_who_could_be_asked_at_which_cost_and_who_could_not():
    fleet = Fleet()
    fleet.join("a", "b", slots=2)
    fleet.join("full")
    fleet.ask("before")
    for connection in (b"a", b"b", b"full"):
        if fleet.at(connection):
            fleet.accept(connection)
    fleet.ask("r")
    sent = events(fleet)[1]
    assert sent["what"] == "sent"
    told = {each["worker"]: each for each in sent["free"]}
    assert sent["worker"] in told
    assert all(each["cost_s"] > 0 for each in told.values())
    assert len(told) + sent.get("without_a_place", 0) == 3


def test_a_stream_that_goes_on_elsewhere_tells_what_ended_the_first_attempt_and_after_how_many_tokens():
    fleet = Fleet()
    fleet.join("a", can_resume=True)
    fleet.ask("r")
    fleet.start(b"a")
    fleet.say(b"a", "x", token_ids=(1, 2))
    fleet.join("b", can_resume=True)
    fleet.lose(b"a")
    (moved,) = [event for event in events(fleet) if event["what"] == "goes_on"]
    assert (moved["worker"], moved["code"], moved["tokens"]) == ("a", "worker_lost", 2)
    assert story(fleet)[-1] == ("sent", "b")


def test_a_client_that_leaves_and_a_request_that_fails_are_told():
    fleet = Fleet(queue=QueueConfig(timeout_s=1.0))
    fleet.join("a")
    fleet.ask("left")
    fleet.ask("late")
    fleet.start(b"a")
    fleet.dispatcher.cancel("left", fleet.now)
    fleet.pass_time(3600)
    assert story(fleet, "left")[-1] == ("left", "")
    assert events(fleet, "late")[-1]["what"] == "failed"


def test_the_choices_of_one_request_are_found_together_and_nobody_elses():
    lives = Lives()
    for request_id in ("req-1.ab", "req-1.ab.1", "req-12.cd", "req-1"):
        lives.begin(request_id, "m", 0.0)
    assert [life.request_id for life in lives.of("req-1")] == ["req-1.ab", "req-1.ab.1", "req-1"]
    assert [life.request_id for life in lives.of("req-1.ab")] == ["req-1.ab", "req-1.ab.1"]
    assert lives.of("req") == []


def test_the_oldest_are_forgotten_and_a_life_is_bounded_but_for_its_end():
    lives = Lives()
    first = lives.begin("0", "m", 0.0)
    for number in range(1, 2001):
        lives.begin(str(number), "m", 0.0)
    assert not lives.of("0")
    assert lives.of("2000")
    for _ in range(1000):
        first.note(1.0, "waits")
    first.end(2.0, "failed", code="worker_lost")
    assert len(first.told()["events"]) == 101
    assert first.told()["events"][-1]["what"] == "failed"


def test_the_last_requests_that_failed_are_told_the_newest_first_and_nothing_of_others():
    lives = Lives()
    for number, end in enumerate(("failed", "finished", "failed", "failed")):
        lives.begin(str(number), "m", 0.0).end(float(number), end, code="worker_lost")
    lives.begin("under way", "m", 0.0)
    assert lives.failures(2, 10.0) == [
        {"id": "3", "model": "m", "age_s": 7, "code": "worker_lost"},
        {"id": "2", "model": "m", "age_s": 8, "code": "worker_lost"},
    ]
