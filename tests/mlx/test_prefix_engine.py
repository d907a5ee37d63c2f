"""The prefix cache behind the engine's contract, on the embedded model."""

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest

from protocol.models import embedded_folder
from worker.engine.base import run_blocking_startup_work
from worker.engine.batched import BatchedEngine
from worker.engine.output import EngineOutput
from worker.engine.prefix_cache import BLOCK

STORY = "The mill stands by the river, and the miller counts the sacks. " * 8
QUESTION = STORY + "What does the miller count?"
FREED = ("entries", "bytes", "disk_entries", "disk_bytes")


@asynccontextmanager
async def started(models, folder, **options):
    """An engine on the embedded model's folder, with files of its own."""
    path = embedded_folder(models)
    engine = BatchedEngine(str(path), models=folder, max_num_seqs=2, **options)
    await run_blocking_startup_work(engine.prepare_for_start)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def ask(engine, text, max_tokens=6, **settings):
    return engine.chat(
        [{"role": "user", "content": text}], max_tokens=max_tokens, temperature=0.0, **settings
    )


def asked(engine, text, max_tokens=6):
    return engine.stream_chat([{"role": "user", "content": text}], max_tokens=max_tokens, temperature=0.0)


async def settled(engine, name, value):
    """The engine thread does what was posted before its next step."""
    while engine.get_cache_stats()[name] != value:
        await asyncio.sleep(0.01)


def test_fc_18_every_way_to_end_feeds_the_cache(models, tmp_path):
    """FC-18: a stream, a whole answer, a stop string, a client that leaves after three tokens."""

    async def streamed(engine):
        return [token async for item in asked(engine, QUESTION) for token in item.tokens]

    async def cut(engine):
        stream = asked(engine, QUESTION, 50)
        for _ in range(4):
            await anext(stream)
        await stream.aclose()

    async def stopped(engine):
        stop = answers[0].text[3:6]
        assert (await ask(engine, QUESTION, 50, stop=[stop])).matched_stop == stop

    async def scenario():
        async with started(models, tmp_path) as engine:
            for first in (lambda engine: ask(engine, QUESTION), streamed, cut, stopped):
                engine.clear_runtime_caches()
                await settled(engine, "prefix_cache_bytes", 0)
                await first(engine)
                for again in (await ask(engine, QUESTION), await ask(engine, QUESTION)):
                    assert again.cached_tokens == again.prompt_tokens - 1
                    answers.append(again)
        assert all(answer.tokens == answers[0].tokens for answer in answers)

    answers: list[EngineOutput] = []
    asyncio.run(scenario())


def test_fc_10_switched_off_it_keeps_nothing_and_says_so(models, tmp_path):
    """FC-10."""

    async def scenario():
        async with started(models, tmp_path, prefix_cache_mb=0, prefix_cache_disk_mb=100) as engine:
            for _ in range(2):
                assert (await ask(engine, QUESTION)).cached_tokens == 0
            assert set(engine.get_cache_stats().values()) == {0}
            assert engine.clear_runtime_caches() == {"prefix_cache": dict.fromkeys(FREED, 0)}
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scenario())


def test_after_a_start_the_beginning_comes_from_disk_and_clearing_says_what_goes(models, tmp_path):
    async def scenario():
        async with started(models, tmp_path, prefix_cache_disk_mb=100) as engine:
            cold = await ask(engine, QUESTION)
        async with started(models, tmp_path, prefix_cache_disk_mb=100) as engine:
            warm = await ask(engine, QUESTION)
            assert warm.cached_tokens == (cold.prompt_tokens - 1) // BLOCK * BLOCK > 0
            assert warm.tokens == cold.tokens
            stats = engine.get_cache_stats()
            assert stats["prefix_cache_disk_hits"] == stats["prefix_cache_hits"] == warm.cached_tokens
            freed = engine.clear_runtime_caches()["prefix_cache"]
            assert all(freed[name] == stats[f"prefix_cache_{name}"] > 0 for name in FREED)
            await settled(engine, "prefix_cache_disk_bytes", 0)
            assert [engine.get_cache_stats()[f"prefix_cache_{name}"] for name in FREED] == [0, 0, 0, 0]
            assert (await ask(engine, QUESTION)).cached_tokens == 0

    asyncio.run(scenario())


def test_a_model_whose_weights_changed_begins_anew(models, tmp_path):
    """Its fingerprint is the same: it is of the weights' headers only."""
    copies = tmp_path / "copies"
    for source in models.iterdir():
        if source.is_dir() and source.name.startswith("SmolLM2") and not source.name.endswith("partial"):
            shutil.copytree(source, copies / source.name)

    async def scenario():
        async with started(copies, tmp_path / "files", prefix_cache_disk_mb=100) as engine:
            await ask(engine, QUESTION)
            before = engine.facts().fingerprint
        for weights in copies.glob("*/*.safetensors"):
            weights.touch()
        async with started(copies, tmp_path / "files", prefix_cache_disk_mb=100) as engine:
            assert (await ask(engine, QUESTION)).cached_tokens == 0
            assert engine.facts().fingerprint == before

    asyncio.run(scenario())


def test_fc_22_mlx_may_keep_a_gigabyte_of_buffers_at_most(models, tmp_path):
    """FC-22."""
    mx = pytest.importorskip("mlx.core")

    async def scenario():
        async with started(models, tmp_path):
            limit = mx.set_cache_limit(0)
            mx.set_cache_limit(limit)
            assert 0 < limit <= 1 << 30

    asyncio.run(scenario())
