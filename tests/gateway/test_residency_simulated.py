"""The residency policy over time: random models, budgets and arrivals, one gateway or several."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.residency import LEAST_PATIENCE_S, LEAST_STAY_S
from tests.gateway.small_world import STEP_S, Model, World

MODEL = st.builds(
    Model,
    mb=st.integers(20, 60),
    load_s=st.sampled_from((0.2, 1.0, 4.0)),
    service_s=st.sampled_from((0.1, 1.0, 6.0)),
    slots=st.integers(1, 4),
)


def run(world: World, arrivals: list[tuple[float, str, int]], patience_s: float) -> None:
    """Until everything was served, within the budget at every step."""
    arrivals = sorted(arrivals)
    last = arrivals[-1][0] if arrivals else 0.0
    while arrivals or world.waiting or any(w.ends for w in world.workers.values()):
        while arrivals and arrivals[0][0] <= world.now:
            _at, name, gateway = arrivals.pop(0)
            world.ask(name, gateway)
        world.step()
        assert world.held_mb <= world.budget_mb
        assert world.now < last + patience_s, f"{world.waiting} requests are starved"


def longest_turn_s(world: World) -> float:
    """What one model may have to wait for another: its patience, the other's stay, its requests, the load."""
    models = [worker.model for worker in world.workers.values()]
    load_s, service_s = max(m.load_s for m in models), max(m.service_s for m in models)
    return max(LEAST_PATIENCE_S, 2 * load_s) + max(LEAST_STAY_S, load_s) + 2 * service_s + load_s + 1


def check_stays(world: World) -> None:
    for worker in world.workers.values():
        for stayed_s, served, in_use in worker.stays:
            assert served >= 1, f"{worker.name} was loaded and freed for nothing"
            assert not in_use or stayed_s >= LEAST_STAY_S - STEP_S


@settings(max_examples=100, deadline=None)
@given(
    st.lists(MODEL, min_size=2, max_size=5),
    st.integers(60, 160),
    st.integers(1, 2),
    st.integers(0, 5),
    st.integers(0, 2**32),
    st.integers(5, 60),
)
def test_nothing_starves_nothing_flaps_and_the_budget_holds(models, budget_mb, gateways, lag, seed, requests):
    rng = random.Random(seed)
    named = {f"m{number}": model for number, model in enumerate(models)}
    world = World(named, budget_mb, gateways, lag)
    span_s = rng.choice((1.0, 20.0, 60.0))
    arrivals = [
        (rng.uniform(0, span_s), rng.choice(list(named)), rng.randrange(gateways)) for _ in range(requests)
    ]
    work_s = sum(named[name].service_s for _at, name, _gateway in arrivals)
    run(world, arrivals, work_s + 2 * requests * longest_turn_s(world))
    check_stays(world)
    assert sum(worker.loads for worker in world.workers.values()) <= requests
    assert max(wait for gateway in world.gateways for wait in gateway.waits) <= (
        work_s + 2 * len(models) * gateways * longest_turn_s(world)
    )


def test_two_models_in_constant_use_share_the_room_of_one_fairly():
    world = World({"a": Model(60, 1.0, 0.5), "b": Model(60, 1.0, 0.5)}, 100)
    arrivals = [(number / 2, "ab"[number % 2], 0) for number in range(240)]  # 120 s
    run(world, arrivals, 200.0)
    check_stays(world)
    loads = sum(worker.loads for worker in world.workers.values())
    assert 4 <= loads <= 120 / LEAST_STAY_S + 2
    assert max(world.gateways[0].waits) < 2 * longest_turn_s(world)


def test_two_gateways_that_want_different_models_take_turns():
    world = World({"a": Model(60, 1.0, 0.5), "b": Model(60, 1.0, 0.5)}, 100, gateways=2, lag_steps=3)
    arrivals = [(number / 2, "ab"[number % 2], number % 2) for number in range(240)]
    run(world, arrivals, 200.0)
    check_stays(world)
    assert sum(worker.loads for worker in world.workers.values()) <= 120 / LEAST_STAY_S + 2


def test_what_fits_together_is_loaded_once():
    world = World({"a": Model(40, 1.0, 0.5), "b": Model(40, 1.0, 0.5)}, 100, gateways=2, lag_steps=5)
    rng = random.Random(3)
    run(world, [(rng.uniform(0, 60), rng.choice("ab"), rng.randrange(2)) for _ in range(200)], 60.0)
    assert [worker.loads for worker in world.workers.values()] == [1, 1]


def test_three_models_in_steady_use_with_room_for_two_are_not_loaded_for_each_request():
    world = World({name: Model(40, 4.0, 0.1) for name in "abc"}, 100)
    arrivals = [(number / 5, "abc"[number % 3], 0) for number in range(600)]  # 120 s
    run(world, arrivals, 200.0)
    check_stays(world)
    assert sum(worker.loads for worker in world.workers.values()) <= 2 * 120 / (LEAST_STAY_S + 4.0)
    assert max(world.gateways[0].waits) < 2 * longest_turn_s(world)
