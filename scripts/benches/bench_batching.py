"""Eight questions to one worker on the embedded model, all at once against one after the other, over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import httpx
from measure import compare, machine
from servers import PATIENCE_S, Cluster, processes

QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "Give me a word that rhymes with cat.",
    "What do bees make?",
    "Say hello in Spanish.",
)
EMBEDDED = 'model = "embedded"\nprefix_cache_mb = 0\nmax_num_seqs = 8'
"""Without the prefix cache, which would spare the later runs their prompts."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=48, help="of each answer at most")


def run(folder: Path, options: argparse.Namespace) -> None:
    texts: dict[str, list[str]] = {}

    def together() -> float:
        seconds, texts["together"] = asyncio.run(asked_together(url, options.tokens))
        return seconds

    def alone() -> float:
        seconds, texts["alone"] = asyncio.run(asked_alone(url, options.tokens))
        return seconds

    with processes() as owned:
        url = Cluster(folder, EMBEDDED, owned).url
        print(machine())
        compare("together / the eight alone", "s", options.pairs, together, alone)
        if texts["together"] != texts["alone"]:
            raise SystemExit("the texts differ: what was computed together is not what was computed alone")


async def asked_alone(url: str, tokens: int) -> tuple[float, list[str]]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        begun = time.perf_counter()
        texts = [await ask(client, question, tokens) for question in QUESTIONS]
        return time.perf_counter() - begun, texts


async def asked_together(url: str, tokens: int) -> tuple[float, list[str]]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        begun = time.perf_counter()
        texts = await asyncio.gather(*(ask(client, question, tokens) for question in QUESTIONS))
        return time.perf_counter() - begun, texts


async def ask(client: httpx.AsyncClient, question: str, tokens: int) -> str:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": tokens}
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])
