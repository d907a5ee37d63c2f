"""Rows that give up their caches and come back, in the batch of a tiny random model."""

from __future__ import annotations

import asyncio

import pytest

from tests.mlx.test_batch import network, run, sampling, sequence  # noqa: F401 (a fixture)
from tests.mlx.test_limits import ShortOnce, endless, tokens_of

pytest.importorskip("mlx.core", reason="mlx is not installed")

from worker.engine.batch import Batch
from worker.engine.batch_sampler import BatchSampler
from worker.engine.prefix_cache import PrefixCache


def make(network, slots=4, kv_tokens=None, prefix_bytes=0):  # noqa: F811
    ticks = iter(range(10**6))
    prefixes = PrefixCache(prefix_bytes)
    return Batch(BatchSampler(network), slots, prefixes, lambda: next(ticks) / 1e4, kv_tokens=kv_tokens)


def three():
    return [sequence("a"), sequence("b", 40, settings=sampling(0.9, 5)), sequence("c", 9, max_tokens=12)]


def expected(network):  # noqa: F811
    return run(make(network), *three())[0]


@pytest.mark.parametrize("moments", [[0], [1], [2], [5], [1, 2, 3], range(40)])
def test_who_gave_up_its_cache_goes_on_where_it_was(network, moments):  # noqa: F811
    batch, requests = make(network), three()
    for each in requests:
        batch.add(each)
    taken = []
    for step in range(200):
        taken += [owner.request_id for owner, event in batch.step() if event.cached_tokens is not None]
        if step in moments and (alone := batch.make_room()) is not None:
            assert batch.running <= 1
            assert alone in requests
    assert not batch.has_work
    assert {each.request_id: each.emitted for each in requests} == expected(network)
    assert sorted(taken) == ["a", "b", "c"]  # each is said to be taken once
    assert batch.preemptions >= 1
    assert batch._rows._generator.prompt_cache_nbytes == 0


def test_the_newest_goes_and_comes_back_before_anything_new(network):  # noqa: F811
    batch = make(network)
    old, new, later = (sequence(name, max_tokens=count) for name, count in (("a", 20), ("b", 20), ("c", 3)))
    batch.add(old)
    batch.add(new)
    while not new.emitted:
        batch.step()
    assert batch.make_room() is None
    batch.add(later)
    had = len(new.emitted)
    while len(old.emitted) < 20:
        batch.step()
        assert (len(new.emitted), later.emitted) == (had, [])
    run(batch)
    assert [len(each.emitted) for each in (new, later)] == [20, 3]


def test_one_that_is_alone_is_named_and_nothing_is_done(network):  # noqa: F811
    batch, lone = make(network), sequence("a", max_tokens=20)
    assert batch.make_room() is None
    batch.add(lone)
    batch.step()
    assert batch.make_room() is lone
    assert run(batch)[1] == {}
    assert (len(lone.emitted), batch.preemptions) == (20, 0)


def test_what_was_read_of_one_that_was_put_aside_goes_first(network):  # noqa: F811
    batch = make(network)
    long, short = sequence("b", length=1500), sequence("c", max_tokens=30)
    batch.add(long)
    batch.step()
    batch.add(short)
    batch.step()
    assert batch._aside
    assert batch.make_room() is None
    assert (dict(batch._aside), batch.running + batch.preemptions) == ({}, 0) or not batch.preemptions
    run(batch)
    assert long.emitted == run(make(network), sequence("b", length=1500))[0]["b"]


def test_one_that_waits_for_memory_and_is_removed_leaves_nothing(network):  # noqa: F811
    batch, (first, second, third) = make(network), three()
    for each in (first, second, third):
        batch.add(each)
    for _ in range(3):
        batch.step()
    batch.make_room()
    batch.remove(third)
    run(batch)
    assert not batch._preemption.anyone
    assert (first.emitted, second.emitted) == (expected(network)["a"], expected(network)["b"])
    assert len(third.emitted) < 12


@pytest.mark.parametrize("budget", [1, 30, 60, 75])
def test_rows_stay_within_the_budget_of_tokens_and_all_answers_are_whole(network, budget):  # noqa: F811
    batch, requests = make(network, kv_tokens=budget), three()
    for each in requests:
        batch.add(each)
    for _ in range(200):
        batch.step()
        held = [len(row.sequence.ids) for row in batch._rows.all()]
        assert sum(held) <= budget or len(held) == 1
    assert not batch.has_work
    assert {each.request_id: each.emitted for each in requests} == expected(network)


def test_answers_that_outgrow_the_budget_together_are_all_whole(make_engine, tiny, untried):
    """A part of each is promised ahead; where both get longer, the newest waits."""

    async def scenario():
        async with make_engine(2, 0, model=str(tiny), kv_tokens=600, prefix_cache_mb=0) as engine:
            both = [
                engine.generate(word, max_tokens=550, temperature=0.0, ignore_eos=True)
                for word in ("Hello", "World")
            ]
            answers = await asyncio.gather(*both)
            stats = engine.get_stats()
            assert [answer.completion_tokens for answer in answers] == [550, 550]
            assert (stats["num_preemptions"], stats["kv_cache_tokens"]) == (1, 0)

    asyncio.run(scenario())


def test_memory_that_runs_short_makes_the_newest_wait_and_nobody_fails(make_engine, tiny, untried):
    memory = ShortOnce("num_preemptions")

    async def scenario():
        async with make_engine(2, 0, model=str(tiny), memory=memory) as engine:
            memory.engine = engine
            first, second = endless(engine), endless(engine)
            await asyncio.gather(tokens_of(first, 2), tokens_of(second, 2))
            memory.used = 96
            async with asyncio.timeout(60):
                while not engine.get_stats()["num_preemptions"]:
                    await tokens_of(first, 1)
            await tokens_of(first, 5)
            assert engine.get_stats()["num_requests_running"] == 1
            await first.aclose()
            await tokens_of(second, 5)
            assert engine.get_stats()["num_requests_ended_for_memory"] == 0
            await second.aclose()

    asyncio.run(scenario())
