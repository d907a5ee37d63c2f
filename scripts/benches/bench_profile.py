"""Where the time of a decode step goes, and by how much it is longer than the model's own.

Worker and engine as they serve, in one process on one core with one BLAS thread, without sockets: all that
is not the model's takes its time from it. Greedy streams, from the last one's first tokens on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measure import machine, report

from protocol.addresses import models_folder
from protocol.codec import encode
from protocol.messages import Deltas, Generate, Message
from protocol.values import Capacity, SamplingParams

if TYPE_CHECKING:
    from profiled import Clock, TimedEngine

WARM = 2
"""Tokens of each stream before the measurement begins."""
WORDS = (
    "choosing tokens",
    "engine thread, beside the model",
    "detokenizing",
    "event loop, the rest",
    "messages",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=40)


def run(_folder: Path, options: argparse.Namespace) -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    from worker.engine.blas import prepare_blas  # noqa: PLC0415 (first of all)

    prepare_blas()
    print(machine())
    asyncio.run(_profile(options))


async def _profile(options: argparse.Namespace) -> None:
    from profiled import Clock, TimedEngine  # noqa: PLC0415 (OpenBLAS came first)

    clock = Clock()
    engine = TimedEngine(clock, models=models_folder(os.environ), max_num_seqs=max(options.streams))
    await engine.start()
    for streams in options.streams:
        runs = [await _run(engine, clock, streams, options.steps) for _ in range(options.pairs + 1)][1:]
        _show(streams, runs)
    await engine.stop()


def _show(streams: int, runs: list[list[float]]) -> None:
    """Of each run the milliseconds of a whole step, and those of its parts."""
    step, *parts = (statistics.median(values) for values in zip(*runs, strict=True))
    print(f"{streams} streams: a step takes {step:.1f} ms; of it")
    for name, value in zip(WORDS, parts, strict=True):
        print(f"  {name}: {value:.2f} ms, {100 * value / step:.2f} %")
    report(
        f"step / the model's own, {streams} streams",
        [whole / (whole - sum(others)) for whole, *others in runs],
        digits=3,
    )


async def _run(engine: TimedEngine, clock: Clock, streams: int, steps: int) -> list[float]:
    """Milliseconds of a step, and of its parts in the order of `WORDS`."""
    from worker.core import Core  # noqa: PLC0415

    had: dict[str, int] = {}
    news = asyncio.Event()

    def send(_gateway: str, message: Message) -> None:
        began = time.thread_time()
        encode(message)
        clock.encoding += time.thread_time() - began
        if isinstance(message, Deltas):
            had.update((delta.request_id, delta.completion_tokens) for delta in message.deltas)
            news.set()

    capacity = Capacity(max_num_seqs=streams)
    core = Core(engine, capacity, send, freed=lambda: None, broken=lambda why: None)
    core.learn(engine.facts())
    core.closed = None
    for number in range(streams):
        core.generate("gw", _request(number))

    async def until(tokens: int) -> None:
        while len(had) < streams or min(had.values()) < tokens:
            news.clear()
            await news.wait()

    await until(WARM)
    before, wall, loop = clock.now(), time.perf_counter(), time.thread_time()
    await until(WARM + steps)
    spent = clock.since(before)
    wall, loop = time.perf_counter() - wall, time.thread_time() - loop
    for request_id in had:
        core.abort("gw", request_id)
    await core.ended()
    parts = (
        spent.choosing,
        spent.stepping - spent.generating,
        spent.detokenizing,
        loop - spent.detokenizing - spent.encoding,
        spent.encoding,
    )
    return [1000 * seconds / spent.steps for seconds in (wall, *parts)]


def _request(number: int) -> Generate:
    return Generate(
        request_id=f"r{number}",
        attempt=0,
        model="m",
        sampling=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1000),
        seed=1,
        prompt=f"Story number {number}: once there was",
    )
