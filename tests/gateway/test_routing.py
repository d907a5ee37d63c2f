"""Names to models, and the choice of a worker."""

from __future__ import annotations

import random
from typing import Any

from gateway.registry import WorkerView
from gateway.routing import candidates, cheapest, drain_cost, is_hopeless, replicas, resolve, served_models
from protocol.config import ModelConfig, WorkerConfig
from protocol.values import Capacity, Load, ModelCard


def view(worker_id: str, **fields: Any) -> WorkerView:
    card = ModelCard(name=fields.pop("model", "m"), aliases=fields.pop("aliases", ()))
    capacity = Capacity(
        max_num_seqs=fields.pop("slots", 2),
        max_waiting=fields.pop("places", 0),
        kv_tokens=fields.pop("kv_tokens", None),
    )
    load = Load(**fields.pop("load", {}))
    known: dict[str, Any] = {"state": "ready", "heard_at": 0.0, "heartbeat_at": 0.0} | fields
    return WorkerView(
        connection=known.pop("connection", worker_id.encode()),
        worker_id=worker_id,
        incarnation="1",
        node="local",
        pid=1,
        card=card,
        capacity=capacity,
        load=load,
        **known,
    )


def ids(*views: WorkerView, now: float = 0.0, tried: tuple[str, ...] = ()) -> list[str]:
    return [v.worker_id for v in candidates(replicas(views, "m"), now, tried=tried, suspect_s=3.0)]


def test_names_that_the_configuration_adds():
    rules = (
        ModelConfig(name="absent", aliases=("a",), patterns=("*",)),
        ModelConfig(name="big", aliases=("claude-local",), patterns=("claude-*", "gpt-?")),
        ModelConfig(name="small", patterns=("claude-haiku*", "*-mini")),
    )
    models = served_models((), [view("w", model="big"), view("v", model="small")], rules)
    assert models == {"big": ["claude-local"], "small": []}
    asked = ("claude-local", "claude-haiku", "gpt-5", "gpt-50", "o-mini", "Claude-x", "a")
    found = [resolve(name, models, rules) for name in asked]
    assert found == ["big", "big", "big", None, "small", None, None]
    assert resolve("claude-x", {"claude-x": [], "big": []}, rules) == "claude-x"


def test_only_ready_connected_workers_of_the_model_with_a_place_are_candidates():
    assert ids(
        view("good"),
        view("other", model="x"),
        view("loading", state="loading"),
        view("gone", connection=b""),
        view("full", load={"running": 1, "waiting": 1}),
        view("promised", load={"running": 1}, unconfirmed=1),
        view("paused", paused_until=1.0),
        view("tried"),
        tried=("tried",),
    ) == ["good"]


def test_a_silent_worker_is_a_candidate_only_where_there_is_no_other():
    assert ids(view("silent"), view("heard", heartbeat_at=4.0), now=5.0) == ["heard"]
    assert ids(view("silent"), now=5.0) == ["silent"]


def test_the_cost_grows_with_what_a_worker_has_and_falls_with_its_speed():
    idle = drain_cost(view("a"))
    assert drain_cost(view("a", load={"running": 1})) > idle
    assert drain_cost(view("a", unconfirmed=1)) > idle
    assert drain_cost(view("a", slots=4)) < idle
    assert drain_cost(view("a", measured_s=1.0)) < idle
    assert drain_cost(view("a", load={"prefill_tokens": 1000}, prefill_tokens_per_s=100.0)) == idle + 10
    assert drain_cost(view("a", load={"prefill_tokens": 1000})) == idle  # no rate is known yet
    half, full = (view("a", kv_tokens=100, load={"kv_tokens": n}) for n in (50, 100))
    assert idle < drain_cost(half) < drain_cost(full)


def test_the_cheapest_of_a_few_is_chosen_and_of_many_a_sample_decides():
    rng = random.Random(3)
    few = [view("a", load={"running": 1}), view("b")]
    assert cheapest([], rng) is None
    chosen = cheapest(few, rng)
    assert chosen is not None
    assert chosen.worker_id == "b"
    many = [view(f"w{i}", measured_s=float(i + 1)) for i in range(20)]
    picks = {found.worker_id for _ in range(200) if (found := cheapest(many, rng))}
    assert 5 < len(picks) <= 18  # not always the same one, and never one of the two dearest


def test_a_free_slot_of_a_slow_worker_goes_before_a_place_to_wait_at_a_fast_one():
    full, slow = view("full", places=1, load={"running": 2}, measured_s=0.1), view("slow", measured_s=9.0)
    assert cheapest([full, slow], random.Random(1)) == slow
    assert cheapest([full], random.Random(1)) == full


def test_names_and_aliases():
    configured = [WorkerConfig(id="c", model="org/big", aliases=("default",))]
    models = served_models(configured, [view("a", model="zed"), view("b", model="m", aliases=("small",))])
    assert models == {"big": ["default"], "m": ["small"], "zed": []}
    assert resolve("big", models) == resolve("default", models) == "big"
    assert resolve("small", models) == "m"
    assert resolve("nothing", models) is None
    assert resolve(None, models) is None
    assert resolve(None, {"only": []}) == "only"


def test_a_models_own_name_goes_before_anothers_alias():
    assert resolve("b", {"a": ["b"], "b": []}) == "b"


def test_hope():
    expected = [WorkerConfig(id="a", model="m")]
    assert not is_hopeless("m", expected, [])
    assert not is_hopeless("m", expected, [view("a", state="failed")])
    assert not is_hopeless("m", [], [view("a", state="failed"), view("b", state="loading")])
    assert not is_hopeless("m", [], [view("a", state="stopped", connection=b"")])
    assert is_hopeless("m", [], [view("a", state="failed")])
    assert is_hopeless("m", [], [])


def test_equals_are_chosen_by_chance():
    two = [view("a"), view("b")]
    chosen = [cheapest(two, random.Random(seed)) for seed in range(40)]
    assert {found.worker_id for found in chosen if found is not None} == {"a", "b"}


def test_a_worker_that_served_nothing_yet_counts_as_fast_as_the_fastest():
    busy, new = view("a", measured_s=0.5, load={"running": 1}), view("b")
    found = cheapest([busy, new], random.Random(1))
    assert found is not None
    assert found.worker_id == "b"
    three = [view("slow", measured_s=2.0), view("fast", measured_s=0.1), view("new")]
    chosen = [cheapest(three, random.Random(seed)) for seed in range(40)]
    assert {found.worker_id for found in chosen if found is not None} == {"fast", "new"}
