"""A worker whose model comes and goes, against the gateway's end of the wire."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from protocol.messages import Drain, Heartbeat, Hello, LoadModel, Rejected, Undrain, Unload
from tests.integration.cluster import Cluster, script
from tests.integration.scripted_gateway import ScriptedGateway
from tests.integration.test_worker_wire import worker
from worker.claim import Claim

pytestmark = pytest.mark.integration

LONG = script(tokens=["a"], repeat=200, delay_ms=10)


@contextmanager
def idle_worker(load_s: float = 0.0, **settings: Any) -> Iterator[tuple[ScriptedGateway, Cluster]]:
    """It takes 60 MB of 100."""
    options = {"weights_mb": 60, "load_s": load_s}
    with worker(
        "[residency]\nmemory_budget_mb = 100",
        ready=False,
        residency="on_demand",
        engine_options=options,
        **settings,
    ) as (gateway, cluster):
        gateway.wait_for(Heartbeat, state="idle")
        yield gateway, cluster


def load(gateway: ScriptedGateway) -> None:
    gateway.send(LoadModel())
    gateway.wait_ready()


def serve(gateway: ScriptedGateway, request_id: str) -> None:
    gateway.ask(request_id, "hello", sampling={"max_tokens": 2})
    gateway.finished(request_id)


def wait_state(gateway: ScriptedGateway, state: str) -> Heartbeat:
    """The first heartbeat of that state from now on."""
    gateway.forget()
    return gateway.wait_for(Heartbeat, state=state)


def test_it_starts_idle_and_says_what_it_would_take():
    with idle_worker() as (gateway, _):
        assert gateway.wait_for(Heartbeat, state="idle").resident_mb == 0
        capacity = [m for m in gateway.heard if isinstance(m, Hello)][-1].capacity
        assert (capacity.on_demand, capacity.memory_mb, capacity.memory_budget_mb) == (True, 60, 100)


def test_a_request_that_reaches_it_is_rejected_and_says_why():
    with idle_worker() as (gateway, _):
        gateway.ask("r", "hello")
        assert gateway.wait_for(Rejected, request_id="r").reason == "unloaded"


def test_it_loads_when_told_holds_its_memory_serves_and_frees_it_when_told():
    with idle_worker(load_s=0.3) as (gateway, cluster):
        claim = cluster.home.memory_claim("w-1")
        load(gateway)
        loading = gateway.wait_for(Heartbeat, state="loading")
        assert loading.resident_mb == 60
        assert claim.read_text() == "60\n"
        hello = gateway.wait_for(Hello, state="ready")
        assert (hello.capacity.memory_mb, hello.capacity.memory_budget_mb) == (60, 100)
        assert gateway.wait_for(Heartbeat, state="ready").load_s >= 0.3
        serve(gateway, "r")
        gateway.forget()
        gateway.send(Unload())
        assert gateway.wait_for(Heartbeat, state="idle").resident_mb == 0
        assert not claim.exists()
        load(gateway)
        serve(gateway, "again")


def test_it_is_not_freed_before_anybody_used_it_nor_while_it_serves():
    with idle_worker() as (gateway, _):
        load(gateway)
        gateway.send(Unload())
        serve(gateway, "first")
        gateway.ask("long", LONG)
        gateway.wait_for(Heartbeat, state="ready")
        gateway.send(Unload())
        gateway.finished("long")
        assert not any(isinstance(m, Heartbeat) and m.makes_room for m in gateway.heard)


def test_told_to_drain_it_finishes_what_it_has_takes_nothing_new_and_is_freed_then():
    with idle_worker() as (gateway, _):
        load(gateway)
        serve(gateway, "first")
        gateway.ask("long", LONG)
        gateway.wait(lambda m: getattr(m, "request_id", "") == "long", "an answer")
        gateway.send(Unload(drain=True))
        draining = gateway.wait_for(Heartbeat, state="draining")
        assert draining.makes_room
        assert "others need the room" in draining.detail
        gateway.ask("late", "hello")
        assert gateway.wait_for(Rejected, request_id="late").reason == "draining"
        assert gateway.finished("long").usage.completion_tokens == 200
        gateway.wait(lambda m: isinstance(m, Heartbeat) and m.state == "idle" and not m.makes_room, "idle")
        assert gateway.text("long") == "a" * 200


def test_without_requests_it_frees_its_model_by_itself():
    with idle_worker(idle_timeout=0.5) as (gateway, cluster):
        load(gateway)
        serve(gateway, "r")
        wait_state(gateway, "idle")
        assert "idle for too long" in cluster.log("w-1")


def test_an_order_to_load_while_it_is_being_freed_is_not_kept():
    with idle_worker() as (gateway, _):
        load(gateway)
        serve(gateway, "first")
        gateway.ask("long", LONG)
        gateway.wait(lambda m: getattr(m, "request_id", "") == "long", "an answer")
        gateway.send(Unload(drain=True))
        gateway.send(LoadModel())
        wait_state(gateway, "idle")
        gateway.hear(for_s=1.5)
        assert "loading" not in {m.state for m in gateway.heard if isinstance(m, Heartbeat)}


def test_drained_it_does_not_load_until_that_is_over():
    with idle_worker() as (gateway, _):
        gateway.send(Drain())
        wait_state(gateway, "draining")
        gateway.send(LoadModel())
        gateway.ask("r", "hello")
        assert gateway.wait_for(Rejected, request_id="r").reason == "draining"
        gateway.send(Undrain())
        wait_state(gateway, "idle")
        load(gateway)
        gateway.send(Drain())
        assert wait_state(gateway, "draining").resident_mb == 60
        gateway.send(Undrain())
        wait_state(gateway, "ready")


def test_without_room_it_stays_idle_and_says_both_figures():
    with idle_worker() as (gateway, cluster):
        other = Claim(cluster.home, "other")
        other.take(50, 100)
        gateway.send(LoadModel())
        refused = gateway.wait(lambda m: isinstance(m, Heartbeat) and m.detail, "a reason")
        assert refused.state == "idle"
        assert refused.detail == "the model needs 60 MB, and 50 MB of 100 MB are free (held by other 50 MB)"
        other.release()
        load(gateway)
        assert gateway.wait_for(Heartbeat, state="ready").detail == ""


def test_it_is_restarted_and_stopped_like_any_other():
    with idle_worker(load_s=60.0) as (gateway, cluster):
        gateway.send(Drain(then="restart"))
        assert cluster.wait_exit("w-1") == 75
        gateway.forget()
        cluster.start("worker", "w-1")
        gateway.wait_for(Heartbeat, state="idle")
        gateway.send(LoadModel())
        gateway.wait_for(Heartbeat, state="loading")
        cluster.signal("w-1", signal.SIGTERM)
        assert cluster.wait_exit("w-1") == 0
        assert not cluster.home.memory_claim("w-1").exists()


def test_what_can_never_fit_is_said_at_the_start():
    settings = {"residency": "on_demand", "memory_mb": 101}
    with worker("[residency]\nmemory_budget_mb = 100", ready=False, **settings) as (_, cluster):
        assert cluster.wait_exit("w-1") == 78
        assert "it needs 101 MB, and models may take 100 MB on this machine" in cluster.log("w-1")


def test_one_that_is_always_loaded_holds_its_memory_whatever_the_budget_says():
    options = {"weights_mb": 500}
    with worker("[residency]\nmemory_budget_mb = 100", engine_options=options) as (gateway, cluster):
        assert wait_state(gateway, "ready").resident_mb == 500
        gateway.send(Unload(drain=True))
        gateway.send(LoadModel())
        serve(gateway, "r")
        assert "sent a Unload, which this worker does not do" in cluster.log("w-1")
