"""Requests for models that are not loaded: who waits, who is refused, and what is said to workers."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config import QueueConfig, ResidencyConfig
from protocol.errors import ClusterError
from protocol.messages import Heartbeat, LoadModel, Rejected, Tokenize, Unload
from protocol.values import Capacity, Load
from tests.gateway.fleet import Fleet, Outlet, hello

DEMAND = Capacity(max_num_seqs=1, on_demand=True, memory_mb=60, memory_budget_mb=100)


def join(fleet: Fleet, name: str, model: str = "m", state: str = "idle") -> None:
    """An on-demand worker."""
    message = hello(name, model=model, state=state)
    fleet.receive(name.encode(), type(message)(**{**_fields(message), "capacity": DEMAND}))


def _fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def beat(fleet: Fleet, name: str, state: str, **fields: Any) -> None:
    held = 0 if state == "idle" else 60
    fleet.receive(name.encode(), Heartbeat(state=state, load=Load(), resident_mb=held, **fields))


def refused(fleet: Fleet, *, waits: bool | None) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        ask(fleet, waits=waits)
    return caught.value


def ask(fleet: Fleet, *, waits: bool | None, request_id: str = "r") -> Outlet:
    return fleet.ask(request_id, waits=waits)


def test_a_request_for_an_idle_worker_waits_and_has_the_model_loaded():
    fleet = Fleet()
    join(fleet, "a")
    outlet = fleet.ask("r")
    assert fleet.counts == (0, 1)
    fleet.pass_time(0.1)
    assert len(fleet.wire.to(b"a", LoadModel)) == 1
    beat(fleet, "a", "loading", progress=0.5)
    beat(fleet, "a", "ready")
    assert fleet.at(b"a") == ["r"]
    fleet.start(b"a")
    fleet.finish(b"a")
    assert outlet.ends == 1
    assert fleet.counts == (0, 0)


def test_the_least_recently_used_model_is_told_to_make_room():
    fleet = Fleet()
    join(fleet, "a")
    join(fleet, "b", model="other", state="ready")
    beat(fleet, "b", "ready", idle_s=30.0)
    fleet.ask("r")
    fleet.pass_time(0.1)
    assert fleet.wire.to(b"b", Unload) == [Unload(drain=False)]
    assert fleet.wire.to(b"a", LoadModel) == []
    beat(fleet, "b", "idle")
    fleet.pass_time(0.1)
    assert len(fleet.wire.to(b"a", LoadModel)) == 1


def test_a_worker_that_was_just_freed_rejects_and_the_request_has_it_loaded_again():
    fleet = Fleet()
    join(fleet, "a", state="ready")
    fleet.ask("r")
    beat(fleet, "a", "idle")
    fleet.receive(b"a", Rejected(request_id="r", attempt=0, load=Load(), reason="unloaded"))
    assert fleet.counts == (0, 1)
    fleet.pass_time(0.1)
    assert len(fleet.wire.to(b"a", LoadModel)) == 1


def test_who_does_not_wait_is_told_when_to_come_again_and_the_load_begins():
    fleet = Fleet()
    join(fleet, "a")
    error = refused(fleet, waits=False)
    assert error.code == "model_loading"
    assert error.retry_after_s == 10.0
    assert fleet.counts == (0, 0)
    fleet.pass_time(0.1)
    assert len(fleet.wire.to(b"a", LoadModel)) == 1
    beat(fleet, "a", "loading")
    assert refused(fleet, waits=False).code == "model_loading"
    beat(fleet, "a", "ready")
    ask(fleet, waits=False)
    assert fleet.at(b"a") == ["r"]


def test_a_question_about_a_cold_model_has_it_loaded_too():
    fleet = Fleet()
    join(fleet, "a")
    question = Tokenize(request_id="q", text="a")
    with pytest.raises(ClusterError) as caught:
        fleet.membership.questions.ask(question, "m", fleet.now, lambda _value: None, lambda _error: None)
    assert caught.value.code == "model_loading"
    fleet.pass_time(0.1)
    assert len(fleet.wire.to(b"a", LoadModel)) == 1


def test_the_operator_may_have_everybody_refused_who_does_not_ask_to_wait():
    fleet = Fleet(residency=ResidencyConfig(when_cold="refuse"))
    join(fleet, "a")
    assert refused(fleet, waits=None).code == "model_loading"
    ask(fleet, waits=True)
    assert fleet.counts == (0, 1)


def test_what_is_always_loaded_is_waited_for_unless_the_client_says_otherwise():
    fleet = Fleet(residency=ResidencyConfig(when_cold="refuse"))
    fleet.join("a", state="loading")
    assert refused(fleet, waits=False).code == "model_loading"
    ask(fleet, waits=None)
    assert fleet.counts == (0, 1)


def test_fc_37_nobody_waits_too_long_for_a_load_that_moves():
    fleet = Fleet(queue=QueueConfig(timeout_s=20.0))
    join(fleet, "a")
    outlet = fleet.ask("r")
    for step in range(300):
        beat(fleet, "a", "loading", progress=step / 300)
        fleet.pass_time(1.0)
    assert outlet.ends == 0
    beat(fleet, "a", "ready")
    assert fleet.at(b"a") == ["r"]


def test_fc_37_a_load_that_stands_still_is_not_waited_for_for_ever():
    fleet = Fleet(queue=QueueConfig(timeout_s=20.0))
    join(fleet, "a")
    outlet = fleet.ask("r")
    for _ in range(119):
        beat(fleet, "a", "loading", progress=0.5)
        fleet.pass_time(1.0)
    assert outlet.ends == 0
    for _ in range(30):
        beat(fleet, "a", "loading", progress=0.5)
        fleet.pass_time(1.0)
    assert outlet.code == "queue_timeout"


def test_nobody_waits_too_long_for_room_that_others_will_make():
    fleet = Fleet(queue=QueueConfig(timeout_s=20.0))
    join(fleet, "a")
    join(fleet, "b", model="other", state="ready")
    fleet.ask("long", model="other")
    outlet = fleet.ask("r")
    for _ in range(100):
        beat(fleet, "a", "idle")
        beat(fleet, "b", "ready", load_s=60.0)
        fleet.pass_time(1.0)
    assert outlet.ends == 0
    assert fleet.wire.to(b"b", Unload)[-1] == Unload(drain=True)


def test_the_clients_own_time_runs_while_the_model_is_loaded():
    fleet = Fleet()
    join(fleet, "a")
    outlet = fleet.ask("r", time_left_s=5.0)
    for step in range(6):
        beat(fleet, "a", "loading", progress=step / 10)
        fleet.pass_time(1.0)
    assert outlet.code == "deadline_exceeded"


def test_who_waits_in_vain_for_room_is_told_what_the_worker_said():
    fleet = Fleet(queue=QueueConfig(timeout_s=20.0))
    join(fleet, "a")
    outlet = fleet.ask("r")
    for _ in range(25):
        beat(fleet, "a", "idle", detail="the model needs 60 MB, and 40 MB of 100 MB are free")
        fleet.pass_time(1.0)
    assert outlet.code == "queue_timeout"
    assert outlet.error is not None
    assert "(the model needs 60 MB, and 40 MB of 100 MB are free)" in outlet.error.message
