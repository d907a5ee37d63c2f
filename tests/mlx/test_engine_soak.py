"""Mixed traffic for a while: memory stays flat, and at the end nothing is left.

STUDIOFLEET_SOAK_S says for how long: 1800 for half an hour.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from worker.engine.base import EngineBusy

pytest.importorskip("mlx.core", reason="mlx is not installed")

SOAK_S = float(os.environ.get("STUDIOFLEET_SOAK_S", "60"))
SEED = int(os.environ.get("STUDIOFLEET_SEED", str(random.randrange(2**32))))
LENGTHS = range(4, 1204, 4)
"""300 different lengths of prompts."""
CLIENTS = 12
GROWTH = 1.05
SLACK = {"memory_footprint_bytes": 16 << 20, "memory_cache_bytes": 64 << 20}
"""An allocator's pages come and go; so do the arrays of a step, between some MiB and none."""

pytestmark = pytest.mark.usefixtures("untried")


@dataclass
class Readings:
    """Figures of memory over time."""

    of: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in SLACK})

    def take(self, stats: dict[str, Any]) -> None:
        for name, values in self.of.items():
            values.append(stats[name])

    def quarter(self, name: str, number: int) -> float:
        values = self.of[name]
        return statistics.median(values[len(values) * (number - 1) // 4 : len(values) * number // 4])


class Traffic:
    """Clients that ask one thing after the other, all lengths in turn."""

    def __init__(self, engine: Any, ends: float) -> None:
        self._engine = engine
        self._ends = ends
        self._dice = random.Random(SEED)
        self._lengths: list[int] = []
        self.counts = {"answered": 0, "left": 0, "busy": 0}
        self.seen: set[int] = set()

    async def client(self) -> None:
        while time.monotonic() < self._ends:
            self._lengths = self._lengths or self._dice.sample(LENGTHS, len(LENGTHS))
            length = self._lengths.pop()
            while not await self._served(length):
                await asyncio.sleep(0.1)
            self.seen.add(length)

    async def _served(self, length: int) -> bool:
        try:
            await self._ask(length)
        except EngineBusy:
            self.counts["busy"] += 1
            return False
        return True

    async def _ask(self, length: int) -> None:
        dice = self._dice
        begins = 7 if dice.random() < 0.3 else dice.randrange(1000, 40_000)  # some begin alike
        prompt = [begins + i % 997 for i in range(length)]
        leaves_after = dice.choice([None, None, None, 0, 1, dice.randrange(40)])
        stream = self._engine.stream_generate(prompt, dice.randrange(1, 60), **self._settings())
        async with aclosing(stream):
            count = 0
            async for item in stream:
                count += len(item.tokens)
                if leaves_after is not None and count >= leaves_after:
                    self.counts["left"] += 1
                    return
        self.counts["answered"] += 1

    def _settings(self) -> dict[str, Any]:
        dice = self._dice
        kinds: list[dict[str, Any]] = [
            {"temperature": 0.0},
            {"temperature": 1.0, "top_p": 1.0, "seed": dice.randrange(2**32)},
            {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
            {"temperature": 0.7, "min_p": 0.05, "stop": ["the", "qu"]},
            {"temperature": 1.2, "repetition_penalty": 1.1, "logit_bias": {"5": 3.0}},
            {"temperature": 0.0, "logprobs": 3, "ignore_eos": True},
        ]
        return dice.choice(kinds)


@pytest.mark.timeout(600 + 2 * SOAK_S)
def test_memory_stays_flat_under_mixed_traffic_and_nothing_is_left(make_engine, tiny):
    readings = Readings()
    print(f"\nSTUDIOFLEET_SEED={SEED}, {SOAK_S:g} s")

    async def scenario() -> None:
        async with make_engine(8, 2, model=str(tiny), prefix_cache_mb=8) as engine:
            traffic = Traffic(engine, time.monotonic() + SOAK_S)
            clients = [asyncio.create_task(traffic.client()) for _ in range(CLIENTS)]
            everyone = asyncio.gather(*clients)
            while not everyone.done():
                await asyncio.sleep(SOAK_S / 120)
                readings.take(engine.get_stats())
            await everyone
            print(
                traffic.counts,
                f"{len(traffic.seen)} lengths, {engine.get_stats()['num_preemptions']} preemptions",
            )
            assert len(traffic.seen) == min(len(LENGTHS), traffic.counts["answered"] + traffic.counts["left"])
            await nothing_left(engine)

    asyncio.run(scenario())
    for name in readings.of:
        second, last = readings.quarter(name, 2), readings.quarter(name, 4)
        print(f"{name}: second quarter {second / 2**20:.1f} MiB, last {last / 2**20:.1f} MiB")
        assert last <= GROWTH * second + SLACK[name]


async def nothing_left(engine: Any) -> None:
    """Counters are exactly zero, and so are the bytes of rows."""
    loaded = engine._host.loaded
    async with asyncio.timeout(60):
        while loaded.stepper.has_work or engine.load().running:
            await asyncio.sleep(0.01)
    stats = engine.get_stats()
    zero = ("num_requests_running", "num_requests_waiting", "prefill_tokens_pending", "kv_cache_tokens")
    assert {name: stats[name] for name in zero} == dict.fromkeys(zero, 0)
    assert stats["num_requests_ended_for_memory"] == 0
    engine.clear_runtime_caches()
    left = await asyncio.to_thread(loaded.thread.call, lambda: left_in(loaded.stepper))
    assert left == (0, 0, 0, 0, 0)


def left_in(stepper: Any) -> tuple[int, ...]:
    """Bytes and entries that requests left. On the engine thread."""
    gc.collect()
    cache = stepper.prefix_stats
    return (
        stepper._rows._generator.prompt_cache_nbytes,
        len(stepper._rows),
        len(stepper._aside),
        cache["prefix_cache_bytes"],
        cache["prefix_cache_entries"],
    )
