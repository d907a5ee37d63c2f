"""Streams of the embedded model whose worker is killed: the client reads what it would have read anyway."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.intruding import environ_with
from tests.integration.cluster import Cluster, config_text, running, wait_for

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]

PATIENCE_S = 240.0
WORKERS = "".join(f'[[workers]]\nid = "smol-{n}"\nmodel = "embedded"\n' for n in (1, 2))
QUESTION = "Write a long story about the sea."
SAID = [{"role": "user", "content": QUESTION}]
GREEDY: dict[str, Any] = {"temperature": 0}
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 11}
TOKENS = 140
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": SAID, "max_tokens": TOKENS}),
    "completions": ("completions", {"prompt": QUESTION, "max_tokens": TOKENS}),
    "responses": ("responses", {"input": QUESTION, "max_output_tokens": TOKENS}),
    "messages": ("messages", {"messages": SAID, "max_tokens": TOKENS}),
}
STREAMS = [(dialect, settings) for settings in (GREEDY, SEEDED) for dialect in REQUESTS]
SEEDLESS = ("responses", "messages")
"""Their clients give none; the gateway of this test draws the same for all."""


class Stream:
    """What came so far."""

    def __init__(self, dialect: str, settings: dict[str, Any]) -> None:
        path, body = REQUESTS[dialect]
        self.path = f"/v1/{path}"
        self.body = {**body, **settings, "model": "smollm2-135m", "stream": True, "ignore_eos": True}
        if dialect in SEEDLESS:
            self.body.pop("seed", None)
        self.pieces: list[str] = []
        self.tokens = 0

    async def read(self, client: httpx.AsyncClient) -> None:
        if self.path.endswith("completions"):
            self.body["stream_options"] = {"include_usage": True}
        async with client.stream("POST", self.path, json=self.body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line[6:]))

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event or event["error"] is None, event
        for choice in event.get("choices", ()):
            self.pieces.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        if event.get("type") == "response.output_text.delta":
            self.pieces.append(event["delta"])
        if event.get("type") == "content_block_delta":
            self.pieces.append(event["delta"]["text"])
        usage = event.get("usage") or event.get("response", {}).get("usage") or {}
        self.tokens = usage.get("completion_tokens") or usage.get("output_tokens") or self.tokens

    @property
    def text(self) -> str:
        return "".join(self.pieces)


async def all_of(cluster: Cluster, *, kill: bool) -> list[Stream]:
    """All streams at once; with `kill`, each worker dies once, and each stream is taken over."""
    streams = [Stream(dialect, settings) for dialect, settings in STREAMS]
    async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
        reading = [asyncio.create_task(stream.read(client)) for stream in streams]
        if kill:
            await asyncio.to_thread(
                wait_for, lambda: all(len(s.pieces) > 20 for s in streams), "20 tokens of each", PATIENCE_S
            )
            for victim in ("smol-1", "smol-2"):
                await asyncio.to_thread(exchange, cluster, victim)
            assert not any(task.done() for task in reading)
        await asyncio.gather(*reading)
    return streams


def exchange(cluster: Cluster, victim: str) -> None:
    cluster.signal(victim, signal.SIGKILL)
    cluster.wait_exit(victim)
    cluster.start("worker", victim)
    cluster.wait_ready(victim, patience_s=PATIENCE_S)


def test_a_stream_goes_on_as_if_nothing_had_happened_in_every_dialect(tmp_path: Path):
    with running(config_text(WORKERS), gateways=()) as cluster:
        cluster.start("gateway", "gw-1", **environ_with("one_seed", tmp_path))
        for worker_id in ("smol-1", "smol-2"):
            cluster.start("worker", worker_id)
        cluster.wait_ready("smol-1", "smol-2", patience_s=PATIENCE_S)
        undisturbed = asyncio.run(all_of(cluster, kill=False))
        taken_over = asyncio.run(all_of(cluster, kill=True))
        for (dialect, settings), one, other in zip(STREAMS, undisturbed, taken_over, strict=True):
            assert (other.text, other.tokens) == (one.text, TOKENS), (dialect, settings)
        cluster.wait_idle()
