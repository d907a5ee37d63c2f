"""A client that goes away, in every phase: the slot is free at once, counters return to zero."""

from __future__ import annotations

import asyncio
import os
import random

import httpx
import pytest

from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    stream_chat,
    text_of,
)
from tests.integration.raw_http import connect, read_until, request, reset

pytestmark = pytest.mark.integration

ROUNDS = int(os.environ.get("STUDIOFLEET_DISCONNECT_ROUNDS", "200"))
ENDLESS = 1_000_000
"""Tokens; what is not aborted does not end within anybody's patience."""
PHASES = ("queued", "prefill", "first token", "in the middle", "non-streaming")


async def _leave(client: httpx.AsyncClient, phase: str, rng: random.Random) -> None:
    """One request that is dropped in that phase."""
    endless = {"tokens": ["a"], "repeat": 100_000, "delay_ms": 5}
    if phase == "non-streaming":
        await _cancelled(
            client.post("/v1/chat/completions", json=chat(script(**endless), max_tokens=ENDLESS)),
            rng.random() * 0.05,
        )
    elif phase in ("queued", "prefill"):
        body = chat(script(**endless, prefill_ms=60_000), max_tokens=ENDLESS, stream=True)
        await _cancelled(client.post("/v1/chat/completions", json=body), rng.random() * 0.05)
    else:
        body = chat(script(**endless), max_tokens=ENDLESS, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            wanted = 2 if phase == "first token" else rng.randint(3, 12)
            async for line in answer.aiter_lines():
                wanted -= line.startswith("data: ")
                if wanted <= 0:
                    break


async def _cancelled(request, after_s: float) -> None:
    task = asyncio.ensure_future(request)
    await asyncio.wait({task}, timeout=after_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_every_phase_many_times():
    config = config_text(fake_worker("w-1", max_num_seqs=2) + fake_worker("w-2", max_num_seqs=2))
    rng = random.Random(7)

    async def scenario(cluster: Cluster) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S, limits=limits) as client:
            phases = [PHASES[i % len(PHASES)] for i in range(ROUNDS)]
            rng.shuffle(phases)
            gate = asyncio.Semaphore(8)  # of 5 places (4 slots, none waiting), so that some are queued

            async def one(phase: str) -> None:
                async with gate:
                    if phase == "queued":
                        await _leave(client, phase, rng)
                    else:
                        await asyncio.wait_for(_leave(client, phase, rng), PATIENCE_S)

            await asyncio.gather(*(one(phase) for phase in phases))
            events = await stream_chat(client, chat(script(tokens=["still ", "here"])))
            assert text_of(events) == "still here"

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()
        for process_id in ("gw-1", "w-1", "w-2"):
            assert "Traceback" not in cluster.log(process_id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_only_slot_for_the_next(stream: bool):
    config = config_text(fake_worker("w-1", max_num_seqs=1, max_waiting=0))

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            for _ in range(10):
                body = chat(
                    script(tokens=["a"], repeat=100_000, delay_ms=5), max_tokens=ENDLESS, stream=stream
                )
                await _cancelled(client.post("/v1/chat/completions", json=body), 0.1)
                answer = await client.post("/v1/chat/completions", json=chat(script(tokens=["next"])))
                assert answer.json()["choices"][0]["message"]["content"] == "next"

    with running(config, "w-1") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()


def test_a_client_of_many_choices_that_leaves_is_not_written_to_any_more():
    """asyncio warns of the sixth write to a connection that is lost."""
    body = request(chat(script(tokens=["a"], repeat=ENDLESS, delay_ms=0.1), n=16, stream=True))
    with running(config_text(fake_worker("w-1", max_num_seqs=16)), "w-1") as cluster:
        for _ in range(10):
            connection = connect(cluster.url())
            connection.sendall(body)
            read_until(connection, b'"content":"a"},"logprobs":null,"finish_reason":null}]}\n\n\r\n')
            reset(connection)
            cluster.wait_idle()
        assert "socket.send()" not in cluster.log("gw-1")
