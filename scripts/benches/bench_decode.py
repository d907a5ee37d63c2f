"""Tokens per second over HTTP, against mlx-lm's bare BatchGenerator loop.

Cold prompts, first tokens included. The worker and the bare loop have one core and one BLAS thread each
in turn, the gateway and the clients the other core, so that the engine's share is measured and not the
machine's two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
from measure import compare, machine
from servers import BENCHES, PATIENCE_S, Cluster, Processes, processes

from clusterctl.launching import HUGE_PAGES

EMBEDDED = 'model = "embedded"\nprefix_cache_mb = 0\nmax_num_seqs = 16'
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
WORDS = ("sea", "wood", "town", "ship", "lamp", "river", "stone", "bread", "horse", "winter", "garden")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48, help="of each answer, whatever the model says")
    parser.add_argument("--model", type=Path, default=None, help="its folder; default: the embedded model")


def run(folder: Path, options: argparse.Namespace) -> None:
    model = options.model or embedded_folder()
    engine_core, other_core = ({0}, {1}) if (os.cpu_count() or 1) > 1 else (None, None)
    with processes() as owned:
        engine = EMBEDDED.replace('"embedded"', json.dumps(str(model)))
        ours = Cluster(
            folder,
            engine,
            owned,
            gateway_cores=other_core,
            worker_cores=engine_core,
            environ=ONE_THREAD,
        )
        bare = Bare(model, owned, engine_core)
        if other_core and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, other_core)
        print(machine())
        fresh = itertools.count()
        for streams in options.streams:
            compare(
                f"tokens per second at {streams} streams, ours / bare",
                "tokens/s",
                options.pairs,
                lambda streams=streams: asyncio.run(
                    over_http(ours.url, prompts(streams, fresh), options.tokens)
                ),
                lambda streams=streams: bare.speed(prompts(streams, fresh), options.tokens),
            )


def embedded_folder() -> Path:
    """Fetches it, if it is not there."""
    from protocol.addresses import models_folder  # noqa: PLC0415
    from worker.engine.embedded import ensure_embedded  # noqa: PLC0415

    return ensure_embedded(models_folder(os.environ), lambda _done, _doing: None)


def prompts(count: int, fresh: itertools.count[int]) -> list[list[dict[str, str]]]:
    """Conversations of about 40 tokens that were not asked before."""
    found = []
    for number in itertools.islice(fresh, count):
        first, second = WORDS[number % 11], WORDS[number // 11 % 11]
        text = f"Story number {number}: tell me about the {first} and the {second}."
        found.append([{"role": "user", "content": text}])
    return found


class Bare:
    """The bare loop in its own process."""

    def __init__(self, model: Path, owned: Processes, cores: set[int] | None) -> None:
        command = [sys.executable, "-P", str(BENCHES / "baselines" / "bare_batch.py"), str(model)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        environ = {**ONE_THREAD, "GLIBC_TUNABLES": HUGE_PAGES}  # as the worker has it
        self._process = owned.start(command, cores, environ, **pipes)

    def speed(self, conversations: list[list[dict[str, str]]], tokens: int) -> float:
        """Tokens per second, in its own reckoning."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = {"prompts": conversations, "max_tokens": tokens}
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return float(answer["tokens"] / answer["seconds"])


async def over_http(url: str, conversations: list[list[dict[str, str]]], tokens: int) -> float:
    """Tokens per second of streamed answers, from the first request to the last end."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S * 10) as client:
        begun = time.perf_counter()
        counts = await asyncio.gather(*(one(client, messages, tokens) for messages in conversations))
        return sum(counts) / (time.perf_counter() - begun)


async def one(client: httpx.AsyncClient, messages: list[dict[str, str]], tokens: int) -> int:
    body = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    last = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                last = line
    return int(json.loads(last[6:])["usage"]["completion_tokens"])
