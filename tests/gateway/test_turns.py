"""Whose turn it is at a gateway: classes, keys, a full queue, and what comes back from a worker."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import QueueConfig
from protocol.errors import ClusterError, ErrorCode
from tests.gateway.fleet import Fleet


def busy_fleet(**tables: Any) -> Fleet:
    """One worker with one place, which is taken."""
    fleet = Fleet(**tables)
    fleet.join("a", can_resume=True)
    fleet.ask("first", tenant="greedy")
    fleet.start(b"a")
    return fleet


def serve(fleet: Fleet, count: int) -> list[str]:
    """What the worker gets next, each request done at once."""
    before = len(fleet.at(b"a"))
    for _ in range(count):
        fleet.finish(b"a")
        fleet.start(b"a")
    return fleet.at(b"a")[before:]


def test_keys_take_turns():
    fleet = busy_fleet()
    for number in range(4):
        fleet.ask(f"greedy-{number}", tenant="greedy")
    fleet.ask("light-0", tenant="light")
    fleet.ask("light-1", tenant="light")
    assert serve(fleet, 6) == ["light-0", "greedy-0", "light-1", "greedy-1", "greedy-2", "greedy-3"]


def test_classes_go_before_one_another():
    fleet = busy_fleet()
    for priority in ("batch", "normal", "interactive"):
        fleet.ask(priority, priority=priority, tenant="t")
    assert serve(fleet, 3) == ["interactive", "normal", "batch"]


def test_a_batch_request_is_served_within_its_time_whatever_else_comes():
    fleet = busy_fleet()
    batch = fleet.ask("batch", priority="batch", tenant="jobs")
    for number in range(700):
        fleet.ask(f"person-{number}", priority="interactive", tenant="person")
        fleet.finish(b"a")
        fleet.start(b"a")
        fleet.pass_time(1.0, beating=(b"a",))
        if "batch" in fleet.at(b"a"):
            break
    assert batch.error is None
    assert fleet.now < 600


def test_a_batch_request_may_wait_longer_than_others():
    fleet = busy_fleet()
    outlets = {p: fleet.ask(p, priority=p) for p in ("batch", "normal")}
    for _ in range(65):
        fleet.pass_time(1.0, beating=(b"a",))
    assert outlets["normal"].code == ErrorCode.QUEUE_TIMEOUT
    assert outlets["batch"].error is None
    for _ in range(540):
        fleet.pass_time(1.0, beating=(b"a",))
    assert outlets["batch"].code == ErrorCode.QUEUE_TIMEOUT


def test_a_full_queue_refuses_the_greedy_key_and_takes_the_other():
    fleet = busy_fleet(queue=QueueConfig(max_requests=3))
    greedy = [fleet.ask(f"greedy-{number}", tenant="greedy") for number in range(3)]
    light = fleet.ask("light", tenant="light")
    assert [outlet.code for outlet in greedy] == ["", "", "overloaded"]
    assert greedy[2].error is not None
    assert (greedy[2].ends, light.ends) == (1, 0)
    assert greedy[2].error.retry_after_s
    with pytest.raises(ClusterError) as refused:
        fleet.ask("greedy-3", tenant="greedy")
    assert refused.value.code is ErrorCode.OVERLOADED
    assert fleet.counts == (1, 3)
    assert serve(fleet, 3) == ["light", "greedy-0", "greedy-1"]


def test_what_was_at_a_worker_comes_first_and_takes_no_room():
    fleet = busy_fleet(queue=QueueConfig(max_requests=1))
    fleet.ask("waits", tenant="person", priority="interactive")
    fleet.say(b"a", "x", token_ids=(1,))
    fleet.lose(b"a")
    assert fleet.counts == (0, 2)
    with pytest.raises(ClusterError):
        fleet.ask("more", tenant="person", priority="interactive")
    fleet.join("b", can_resume=True)
    assert fleet.at(b"b") == ["first"]


def test_several_answers_of_one_request_need_one_place_but_no_others_turn():
    fleet = busy_fleet(queue=QueueConfig(max_requests=3))
    fleet.ask("many", tenant="greedy")
    for number in range(1, 5):
        fleet.ask(f"many.{number}", tenant="greedy", further=True)
    fleet.ask("light", tenant="light")
    assert serve(fleet, 3) == ["light", "many", "many.1"]


def test_who_is_rejected_pays_nothing_and_keeps_its_turn():
    fleet = busy_fleet()
    fleet.ask("light", tenant="light")
    fleet.ask("greedy-0", tenant="greedy")
    fleet.finish(b"a")
    assert fleet.at(b"a")[-1] == "light"
    fleet.reject(b"a", running=1)
    assert fleet.counts == (0, 2)
    fleet.pass_time(0.5)
    fleet.beat(b"a")
    assert fleet.at(b"a")[-1] == "light"


def test_who_leaves_costs_its_key_only_what_was_computed():
    fleet = busy_fleet()
    for number in range(3):
        fleet.ask(f"impatient-{number}", tenant="impatient")
        fleet.ask(f"greedy-{number}", tenant="greedy")
    fleet.dispatcher.cancel("impatient-0", fleet.now)
    assert serve(fleet, 3) == ["impatient-1", "greedy-0", "impatient-2"]
