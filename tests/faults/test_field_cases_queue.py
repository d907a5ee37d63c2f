"""Field cases about the queue. The ids are those of the issue."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    wait_for,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def starts(log: Path) -> Counter[str]:
    """How often the engine began each request."""
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.split()[0] for line in lines if not line.startswith("warm"))


def queued(cluster: Cluster) -> int:
    return int(cluster.state()["gateways"][0]["queued"])


# FC-25: queued requests whose client has left still run
def test_fc_25_who_leaves_the_queue_never_reaches_an_engine(tmp_path):
    log = tmp_path / "starts"
    config = config_text(
        fake_worker("w-1", max_num_seqs=1, max_waiting=0, engine_options={"start_log": str(log)})
    )

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:

            def ask(tokens: int) -> asyncio.Task[httpx.Response]:
                body = chat(script(tokens=["a"], repeat=tokens, delay_ms=20))
                return asyncio.create_task(client.post("/v1/chat/completions", json=body))

            async def until(waiting: int) -> None:
                await asyncio.to_thread(
                    wait_for, lambda: queued(cluster) == waiting, f"{waiting} in the queue"
                )

            first = ask(100)
            await asyncio.to_thread(wait_for, lambda: sum(starts(log).values()) == 1, "the first to run")
            impatient = [ask(100) for _ in range(10)]
            await until(10)
            for one in impatient:
                one.cancel()
            await until(0)
            live = ask(1)
            assert (await first).status_code == 200
            ended = time.monotonic()
            assert (await live).status_code == 200
            assert time.monotonic() - ended < 2.0
            await asyncio.gather(*impatient, return_exceptions=True)

    with running(config, "w-1") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()
    assert sum(starts(log).values()) == 2


# FC-100: retries multiply at each layer
def test_fc_100_retries_of_clients_and_a_lost_worker_start_hardly_more_than_is_served(tmp_path):
    log = tmp_path / "starts"
    settings: dict[str, Any] = {
        "max_num_seqs": 2,
        "max_waiting": 0,
        "engine_options": {"start_log": str(log)},
    }
    config = config_text(fake_worker("w-1", **settings) + fake_worker("w-2", **settings))
    message = script(tokens=["a"], repeat=10, delay_ms=20)
    outcomes: Counter[str] = Counter()

    async def call(client: openai.AsyncOpenAI) -> None:
        try:
            answer = await client.chat.completions.create(
                model="fake-model", messages=[{"role": "user", "content": message}]
            )
            outcomes["ok" if answer.choices[0].message.content == "a" * 10 else "wrong"] += 1
        except openai.APIStatusError as error:
            outcomes[str(error.status_code)] += 1

    async def scenario(cluster: Cluster) -> None:
        # Two retries, as the client has it by default.
        async with openai.AsyncOpenAI(base_url=f"{cluster.url()}/v1", api_key="none") as client:
            await asyncio.gather(*(call(client) for _ in range(8)))  # how long they take is known then
            calls = [asyncio.create_task(call(client)) for _ in range(50)]
            await asyncio.to_thread(wait_for, lambda: outcomes["ok"] >= 14, "answers")
            cluster.signal("w-2", signal.SIGKILL)
            cluster.wait_exit("w-2")
            cluster.start("worker", "w-2")
            await asyncio.gather(*calls)
            over = time.monotonic()
            await call(client)
            assert time.monotonic() - over < 5.0, "it recovers as soon as the load is over"

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()
    assert set(outcomes) <= {"ok", "429"}, outcomes
    assert outcomes["ok"] >= 8 + 4 + 16, outcomes  # the slots, the queue, and whom a retry helped
    began = starts(log)
    assert sum(began.values()) / outcomes["ok"] < 1.2, (began, outcomes)
