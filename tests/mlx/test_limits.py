"""What engines refuse, cut and end, and how they tell it."""

import asyncio
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from worker.engine.base import EngineBusy
from worker.engine.batched import BatchedEngine
from worker.engine.memory import MemoryReading
from worker.engine.output import MemoryShort
from worker.engine.serial import SerialEngine

pytestmark = pytest.mark.usefixtures("untried")
DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"


class FakeMemory:
    """A machine that fills up when it is told to."""

    used = 10

    def read(self):
        return MemoryReading(self.used, 0, self.used, 0, limit=100)

    def give_back(self):
        pass


class ShortOnce(FakeMemory):
    """One that is relieved as soon as a figure of the engine shows that something was given up."""

    def __init__(self, figure):
        self._figure = figure
        self.engine: Any = None

    def read(self):
        if self.used >= 95 and self.engine.get_stats()[self._figure]:
            self.used = 20
        return super().read()


class Stuck(FakeMemory):
    """One that gives no answer while `go_on` is not set, so that the step that asks hangs."""

    def __init__(self):
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self):
        self.go_on.wait()
        return super().read()


def endless(engine):
    return engine.stream_generate("Hello", max_tokens=7000, temperature=0.0, ignore_eos=True)


async def tokens_of(stream, count):
    for _ in range(count):
        while not (await anext(stream)).tokens:
            pass


@pytest.mark.parametrize("kind", [BatchedEngine, SerialEngine])
def test_a_request_for_which_memory_is_short_even_alone_is_ended_and_no_other(make_engine, tiny, kind):
    memory = ShortOnce("num_requests_ended_for_memory")

    async def scenario():
        async with make_engine(1, 2, kind, str(tiny), memory=memory) as engine:
            memory.engine = engine
            first = endless(engine)
            await tokens_of(first, 2)
            second = endless(engine)
            memory.used = 90
            async with asyncio.timeout(20):
                while engine.get_stats()["memory_active_bytes"] != 90:
                    await tokens_of(first, 1)
            with pytest.raises(EngineBusy, match="memory is short"):
                endless(engine)
            memory.used = 96
            with pytest.raises(MemoryShort, match="by this request alone"):
                async with asyncio.timeout(20):
                    await tokens_of(first, 7000)
            async with asyncio.timeout(20):
                while engine.get_stats()["memory_active_bytes"] != 20:
                    await tokens_of(second, 1)
            third = endless(engine)
            assert engine.get_stats()["num_requests_ended_for_memory"] == 1
            await second.aclose()
            await tokens_of(third, 1)
            await third.aclose()

    asyncio.run(scenario())


def test_a_step_that_hangs_tells_its_age_although_its_request_left(make_engine, tiny):
    memory = Stuck()

    async def scenario():
        async with make_engine(1, 0, model=str(tiny), memory=memory) as engine, asyncio.timeout(60):
            stream = endless(engine)
            await tokens_of(stream, 3)
            memory.go_on.clear()
            try:
                while engine.load().step_age_s < 0.6:
                    await asyncio.sleep(0.02)
                await stream.aclose()
                assert engine.load().running == 0
                assert engine.load().step_age_s >= 0.6
            finally:
                memory.go_on.set()
            while engine.load().step_age_s:
                await asyncio.sleep(0.02)

    asyncio.run(scenario())


def test_alone_a_request_is_taken_however_little_memory_there_is(make_engine, tiny):
    memory = FakeMemory()
    memory.used = 90

    async def scenario():
        async with make_engine(1, 0, model=str(tiny), memory=memory) as engine:
            assert (await engine.generate("Hello", max_tokens=2)).completion_tokens == 2

    asyncio.run(scenario())


# FC-80: limit in config larger than the model's own
def test_fc_80_a_larger_limit_than_the_models_is_cut_with_a_warning(make_engine, tiny, caplog):
    async def scenario():
        async with make_engine(model=str(tiny), max_model_len=10_000) as engine:
            assert engine.facts().max_model_len == 8192
        async with make_engine(model=str(tiny), max_model_len=100) as engine:
            assert engine.facts().max_model_len == 100

    with caplog.at_level(logging.WARNING, "worker.engine.loading"):
        asyncio.run(scenario())
    assert [r.getMessage() for r in caplog.records if r.name == "worker.engine.loading"] == [
        "max_model_len is 10000, but the model was made for 8192 tokens; 8192 are served"
    ]


@pytest.mark.parametrize(("kind", "disk"), [(BatchedEngine, 1), (SerialEngine, 0)])
def test_the_figures_are_those_that_are_documented(make_engine, tiny, tmp_path, kind, disk):
    def documented(title):
        part = DOCUMENT.read_text().split(f"### {title}")[1].split("\n#")[0]
        return set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", part, re.MULTILINE))))

    async def scenario():
        async with make_engine(1, 0, kind, str(tiny), models=tmp_path, prefix_cache_disk_mb=disk) as engine:
            caches = engine.get_cache_stats()
            expected = documented("`get_cache_stats`")
            others = ("encoder_",) if disk else ("encoder_", "prefix_cache_disk_")
            assert set(caches) == {name for name in expected if not name.startswith(others)}
            answer = await engine.generate("Hello", max_tokens=3, temperature=0.0, ignore_eos=True)
            stats = engine.get_stats()
            assert set(stats) == documented("`get_stats`")
            assert stats["engine"] == kind.kind
            assert (stats["prompt_tokens"], stats["generation_tokens"]) == (answer.prompt_tokens, 3)
            assert stats["memory_active_bytes"] > 1 << 20
            assert stats["memory_limit_bytes"] > 1 << 30

    asyncio.run(scenario())
