"""First token of a prompt that begins like an earlier one: from memory, and from disk after a start.

Both as a share of that of a prompt of the same length that begins like no other, at an engine on the
embedded model. What was written to disk the system still has in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from measure import machine, report

from protocol.addresses import models_folder
from worker.engine.base import run_blocking_startup_work
from worker.engine.batched import BatchedEngine
from worker.engine.embedded import ensure_embedded

WORDS = ("time", "river", "stone", "light", "music", "garden", "paper", "window", "winter", "market")
QUESTIONS = (" Which of these words is the most frequent one?", " Which of these words was the last one?")
TOKENS = 8


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--words", type=int, default=1000, help="that the prompts share, a token each")


def run(folder: Path, options: argparse.Namespace) -> None:
    asyncio.run(measure(folder, options))


async def measure(folder: Path, options: argparse.Namespace) -> None:
    model = ensure_embedded(models_folder(os.environ), lambda _done, _doing: None)
    print(machine())
    memory, disk = [], []
    for pair in range(options.pairs):
        chosen = random.Random(pair)
        prompt = " ".join(chosen.choice(WORDS) for _ in range(options.words))
        async with started(model, folder) as engine:
            await first_token(engine, QUESTIONS[0])  # the first request after a start pays for it
            cold_s, expected = await first_token(engine, prompt + QUESTIONS[0])
            memory_s, _tokens = await first_token(engine, prompt + QUESTIONS[1])
        async with started(model, folder) as engine:
            disk_s, tokens = await first_token(engine, prompt + QUESTIONS[0])
        if tokens != expected:
            raise SystemExit("the texts differ: what came from disk is not what was computed")
        memory.append(memory_s / cold_s)
        disk.append(disk_s / cold_s)
        print(f"pair {pair + 1}: {memory_s:.3g}, {disk_s:.3g} and {cold_s:.3g} s", flush=True)
    report("first token, shared beginning in memory / cold", memory)
    report("first token after a start, shared beginning on disk / cold", disk)


@asynccontextmanager
async def started(model: Path, folder: Path) -> AsyncIterator[BatchedEngine]:
    engine = BatchedEngine(str(model), models=folder, prefix_cache_disk_mb=1024)
    await run_blocking_startup_work(engine.prepare_for_start)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def first_token(engine: BatchedEngine, text: str) -> tuple[float, list[int]]:
    """Seconds to the first token, and the first few."""
    begun, seconds, tokens = time.perf_counter(), 0.0, []
    messages = [{"role": "user", "content": text}]
    async for item in engine.stream_chat(messages, max_tokens=TOKENS, temperature=0.0):
        if item.tokens and not tokens:
            seconds = time.perf_counter() - begun
        tokens += item.tokens
    return seconds, tokens
