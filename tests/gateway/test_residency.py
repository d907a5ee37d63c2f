"""Which models are loaded: tables of single decisions."""

from __future__ import annotations

from typing import Any

from gateway.registry import WorkerView
from gateway.residency import Load, Residency, Unload, ready_in_s
from protocol.values import Capacity, ModelCard
from protocol.values import Load as Work

NOW = 1000.0


def worker(
    name: str, *, model: str = "", mb: int = 40, budget: int | None = 100, **fields: Any
) -> WorkerView:
    """An on-demand worker of a model of its own name, which is idle unless said otherwise."""
    running = fields.pop("running", 0)
    state = fields.pop("state", "idle")
    known: dict[str, Any] = {
        "connection": name.encode(),
        "incarnation": "1",
        "node": "local",
        "pid": 1,
        "heard_at": NOW,
        "heartbeat_at": NOW,
        "state_since": 0.0,
        "resident_mb": 0 if state in ("idle", "starting") else mb,
        "load": Work(running=running),
    } | fields
    slots, demand = known.pop("slots", 2), known.pop("on_demand", True)
    return WorkerView(
        worker_id=name,
        card=ModelCard(name=model or name),
        capacity=Capacity(
            max_num_seqs=slots, max_waiting=0, on_demand=demand, memory_mb=mb, memory_budget_mb=budget
        ),
        state=state,
        **known,
    )


def ready(name: str, **fields: Any) -> WorkerView:
    return worker(name, state="ready", **fields)


def decide(views: list[WorkerView], waited: dict[str, float] | None = None) -> list[Load | Unload]:
    """The first decision, where these models have been waited for so long (0.1 s: `a`)."""
    waiting = {"a": 0.1} if waited is None else waited
    return Residency().decide(views, {model: NOW - seconds for model, seconds in waiting.items()}, NOW)


def test_nothing_is_loaded_for_nobody():
    assert decide([worker("a")], {}) == []


def test_a_model_that_is_waited_for_is_loaded():
    assert decide([worker("a"), worker("b")]) == [Load("a")]


def test_one_replica_is_enough_and_the_node_with_most_room_has_it():
    views = [
        worker("a1", model="a", node="n1"),
        ready("x", node="n1"),
        worker("a2", model="a", node="n2"),
    ]
    assert decide(views) == [Load("a2")]


def test_one_that_loads_already_or_is_about_to_start_is_waited_for():
    for state in ("loading", "warming"):
        assert decide([worker("a1", model="a", state=state), worker("a2", model="a")]) == []
    assert decide([worker("a1", model="a", state="starting", on_demand=False), worker("a2", model="a")]) == []


def test_a_worker_that_is_away_or_that_does_not_load_on_demand_is_told_nothing():
    assert decide([worker("a", connection=b"")]) == []
    assert decide([worker("a", on_demand=False)]) == []


def test_a_further_replica_comes_when_the_others_are_full_for_some_time_and_it_fits():
    full, other = ready("a1", model="a", running=2), worker("a2", model="a")
    assert decide([full, other], {"a": 0.9}) == []
    assert decide([full, other], {"a": 1.1}) == [Load("a2")]
    assert decide([ready("a1", model="a", running=1), other], {"a": 1.1}) == []


def test_for_a_further_replica_nothing_is_freed():
    views = [ready("a1", model="a", running=2), worker("a2", model="a"), ready("b", used_at=1.0)]
    assert decide(views, {"a": 100.0}) == []


def test_the_least_recently_used_idle_model_makes_room():
    views = [worker("a"), ready("b", used_at=20.0), ready("c", used_at=10.0)]
    assert decide(views) == [Unload("c", drain=False)]


def test_a_model_that_serves_or_is_waited_for_does_not_make_room_at_once():
    assert decide([worker("a"), ready("b", running=1), ready("c", unconfirmed=1)]) == []
    assert decide([worker("a"), ready("b"), ready("c")], {"a": 2.0, "b": 0.1, "c": 0.1}) == []


def test_a_model_that_was_just_used_is_in_use_unless_it_loads_faster_than_that():
    other = ready("c", on_demand=False)
    recent = ready("b", used_at=NOW - 1.9, load_s=10.0)
    assert decide([worker("a"), other, recent], {"a": 4.0}) == []
    assert decide([worker("a"), other, recent], {"a": 6.0}) == [Unload("b", drain=True)]
    assert decide([worker("a"), other, ready("b", used_at=NOW - 2.1, load_s=10.0)]) == [
        Unload("b", drain=False)
    ]
    assert decide([worker("a"), other, ready("b", used_at=NOW - 0.2, load_s=0.1)]) == [
        Unload("b", drain=False)
    ]


def test_a_model_that_is_always_loaded_never_makes_room():
    assert decide([worker("a"), ready("b", on_demand=False), ready("c", on_demand=False)], {"a": 99.0}) == []


def test_as_many_are_freed_as_are_needed_and_none_that_is_not():
    views = [worker("a", mb=60), ready("b", mb=30, used_at=1.0), ready("c", mb=30, used_at=2.0)]
    views += [ready("d", mb=40, used_at=3.0)]
    assert decide(views) == [Unload("b", drain=False), Unload("c", drain=False)]
    views = [worker("a", mb=60), ready("b", mb=10, used_at=1.0), ready("c", mb=70, used_at=2.0)]
    assert decide(views) == [Unload("c", drain=False)]


def test_nothing_is_freed_where_that_is_not_enough():
    assert decide([worker("a", mb=90), ready("b", used_at=1.0), ready("c", running=1)]) == []


def test_after_a_time_a_model_in_use_makes_room_the_one_that_was_there_longest():
    views = [worker("a"), ready("b", running=1, state_since=900.0), ready("c", running=1, state_since=800.0)]
    assert decide(views, {"a": 4.9}) == []
    assert decide(views, {"a": 5.1}) == [Unload("c", drain=True)]


def test_a_model_that_takes_long_to_load_waits_longer():
    views = [worker("a", load_s=10.0), ready("b", running=1), ready("c", running=1, state_since=1.0)]
    assert decide(views, {"a": 19.0}) == []
    assert decide(views, {"a": 21.0}) == [Unload("b", drain=True)]


def test_a_model_in_use_stays_for_as_long_as_it_took_to_load():
    other = ready("c", running=1, on_demand=False)
    assert decide([worker("a"), other, ready("b", running=1, state_since=NOW - 4)], {"a": 60.0}) == []
    assert (
        decide([worker("a"), other, ready("b", running=1, state_since=NOW - 9, load_s=10.0)], {"a": 60.0})
        == []
    )
    assert decide(
        [worker("a"), other, ready("b", running=1, state_since=NOW - 11, load_s=10.0)], {"a": 60.0}
    ) == [Unload("b", drain=True)]


def test_a_model_stays_until_it_has_served_those_for_whom_it_was_loaded():
    views = [worker("a"), ready("b", running=2, state_since=NOW - 50), ready("c", on_demand=False)]
    assert decide(views, {"a": 60.0, "b": 70.0}) == []
    assert decide(views, {"a": 60.0, "b": 40.0}) == [Unload("b", drain=True)]


def test_who_waits_longest_is_looked_after_first_and_keeps_what_becomes_free():
    # c is being freed: enough for the model that waits longest, not for both.
    views = [worker("a"), worker("b"), ready("c", mb=90, makes_room=True)]
    assert decide(views, {"a": 1.0, "b": 2.0}) == []
    views = [worker("a", mb=10), worker("b", mb=90), ready("c", mb=80, makes_room=True)]
    assert decide(views, {"a": 1.0, "b": 2.0}) == []
    assert decide(views, {"a": 1.0}) == [Load("a")]


def test_what_makes_room_for_one_model_makes_none_for_the_next():
    views = [worker("a"), worker("b"), ready("c", used_at=1.0), ready("d", used_at=2.0)]
    assert decide(views, {"a": 2.0, "b": 1.0}) == [Unload("c", drain=False), Unload("d", drain=False)]
    views[3] = ready("d", running=1)
    assert decide(views, {"a": 2.0, "b": 1.0}) == [Unload("c", drain=False)]


def test_a_younger_request_takes_room_that_is_of_no_use_to_an_older_one():
    views = [worker("a", mb=90), worker("b", mb=30), ready("c", mb=60, running=1)]
    assert decide(views, {"a": 1.0, "b": 0.5}) == [Load("b")]


def test_memory_of_a_load_that_begins_is_not_given_out_twice():
    views = [worker("a", mb=60), worker("b", mb=60)]
    assert decide(views, {"a": 2.0, "b": 1.0}) == [Load("a")]
    residency = Residency()
    assert residency.decide(views, {"a": 1.0}, NOW) == [Load("a")]
    assert residency.decide(views, {"a": 1.0, "b": 2.0}, NOW + 0.1) == []


def test_an_order_is_given_again_when_nothing_comes_of_it():
    residency = Residency()
    assert residency.decide([worker("a")], {"a": NOW}, NOW) == [Load("a")]
    assert residency.decide([worker("a")], {"a": NOW}, NOW + 1.9) == []
    assert residency.decide([worker("a")], {"a": NOW}, NOW + 2.1) == [Load("a")]


def test_what_is_being_freed_on_order_is_not_freed_again_nor_another_in_its_place():
    residency = Residency()
    views = [worker("a"), ready("b", used_at=1.0), ready("c", used_at=2.0)]
    assert residency.decide(views, {"a": NOW}, NOW) == [Unload("b", drain=False)]
    assert residency.decide(views, {"a": NOW}, NOW + 0.5) == []
    views[1] = worker("b", state="draining", makes_room=True)
    assert residency.decide(views, {"a": NOW}, NOW + 5) == []
    views[1] = worker("b")
    assert residency.decide(views, {"a": NOW}, NOW + 5.1) == [Load("a")]


def test_another_node_is_used_where_room_can_be_made():
    views = [
        worker("a1", model="a", node="n1"),
        ready("b", node="n1", mb=90, running=1),
        worker("a2", model="a", node="n2"),
        ready("c", node="n2", mb=90),
    ]
    assert decide(views) == [Unload("c", drain=False)]


def test_without_a_budget_everything_fits():
    assert decide([worker("a", budget=None), ready("b", mb=10**6, budget=None)]) == [Load("a")]


def test_a_wish_is_as_good_as_a_request_until_it_is_fulfilled_or_old():
    residency = Residency()
    residency.wish("a", NOW)
    assert residency.decide([worker("a")], {}, NOW + 0.1) == [Load("a")]
    assert residency.decide([ready("a")], {}, NOW + 1) == []
    assert residency.decide([worker("a")], {}, NOW + 3) == []
    residency.wish("a", NOW)
    assert residency.decide([worker("a")], {}, NOW + 61) == []


def test_a_drained_worker_that_is_loaded_for_nobody_makes_room():
    views = [worker("a"), worker("b", state="draining", mb=90)]
    assert decide(views) == [Unload("b", drain=False)]


def test_when_a_model_may_be_there():
    assert ready_in_s([], NOW) == 10.0
    assert ready_in_s([worker("a", load_s=4.0)], NOW) == 4.0
    assert ready_in_s([worker("a", load_s=0.1)], NOW) == 1.0
    assert ready_in_s([worker("a", state="loading", load_s=8.0, state_since=NOW - 5)], NOW) == 3.0
    assert ready_in_s([worker("a", state="loading", load_s=99.0, state_since=NOW)], NOW) == 30.0
