"""Busy workers, stale views, the queue: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

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

pytestmark = pytest.mark.integration

LONG = script(tokens=["a"], repeat=100_000, delay_ms=20)


def _starts(path: Path) -> Counter[str]:
    """How often each request's engine work was begun."""
    if not path.exists():
        return Counter()
    lines = path.read_text().splitlines()
    return Counter(line.split()[0] for line in lines if not line.startswith("warm"))


async def _until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        await asyncio.sleep(0.02)


def _totals(cluster: Cluster) -> tuple[int, int]:
    state = cluster.state()
    return sum(w["running"] for w in state["workers"]), sum(g["queued"] for g in state["gateways"])


def test_two_run_the_third_waits_and_the_fourth_is_refused_at_once(tmp_path: Path):
    log = tmp_path / "starts"
    one_slot: dict[str, Any] = {"max_num_seqs": 1, "engine_options": {"start_log": str(log)}}
    config = config_text(
        fake_worker("w-1", **one_slot) + fake_worker("w-2", **one_slot), extra="[queue]\nmax_requests = 1\n"
    )

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            body = chat(script(tokens=["a", "b"], repeat=50, delay_ms=20))
            first = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(3)]
            await _until(lambda: _totals(cluster) == (2, 1), "two running and one queued")
            assert [w["running"] for w in (await asyncio.to_thread(cluster.state))["workers"]] == [1, 1]

            before = time.monotonic()
            fourth = await client.post("/v1/chat/completions", json=body)
            assert time.monotonic() - before < 1.0
            assert fourth.status_code == 429
            assert fourth.json()["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(fourth.headers["retry-after"]) <= 36
            assert float(fourth.headers["retry-after-ms"]) > 0

            answers = await asyncio.gather(*first)
        assert [a.status_code for a in answers] == [200, 200, 200]
        assert {a.json()["choices"][0]["message"]["content"] for a in answers} == {"ab" * 50}
        assert {a.headers["x-worker-id"] for a in answers} == {"w-1", "w-2"}
        assert sorted(_starts(log).values()) == [1, 1, 1]

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()


def test_a_stale_view_leads_to_a_rejection_and_to_the_other_worker(tmp_path: Path):
    log = tmp_path / "starts"
    one_slot: dict[str, Any] = {"max_num_seqs": 1, "engine_options": {"start_log": str(log)}}
    gateways = ("gw-1", "gw-2")
    # Heartbeats come rarely, so that the second gateway does not learn what the first one dispatched.
    config = config_text(
        fake_worker("w-1", **one_slot) + fake_worker("w-2", **one_slot),
        gateways=gateways,
        extra="[heartbeat]\ninterval_s = 5.0\nsuspect_s = 30.0\nlost_s = 100.0\n",
    )

    def rejected(cluster: Cluster) -> int:
        return sum(w["rejected"] for w in cluster.state("gw-2")["workers"])

    async def scenario(cluster: Cluster) -> None:
        first = httpx.AsyncClient(base_url=cluster.url("gw-1"), timeout=PATIENCE_S)
        second = httpx.AsyncClient(base_url=cluster.url("gw-2"), timeout=PATIENCE_S)
        async with first, second:
            held = asyncio.create_task(
                stream_chat(first, chat(script(tokens=["x"], repeat=100, delay_ms=20)))
            )
            await _until(
                lambda: sum(w["running"] for w in cluster.state("gw-1")["workers"]) == 1, "a slot taken"
            )
            # The second gateway believes both workers free. One of its two requests meets the taken one.
            body = chat(script(tokens=["y"], repeat=25, delay_ms=20))
            answers = await asyncio.gather(
                *(second.post("/v1/chat/completions", json=body) for _ in range(2))
            )
            assert [a.status_code for a in answers] == [200, 200], [a.text for a in answers]
            assert {a.json()["choices"][0]["message"]["content"] for a in answers} == {"y" * 25}
            assert text_of(await held) == "x" * 100
        assert rejected(cluster) > 0
        assert sorted(_starts(log).values()) == [1, 1, 1]

    with running(config, "w-1", "w-2", gateways=gateways) as cluster:
        asyncio.run(scenario(cluster))


def test_a_request_behind_a_long_prefill_is_accepted_at_once_and_runs_once(tmp_path: Path):
    log = tmp_path / "starts"
    config = config_text(
        fake_worker("w-1", max_num_seqs=4, engine_options={"start_log": str(log)})
        + fake_worker("w-2", max_num_seqs=4, engine_options={"start_log": str(log)}),
        extra="[routing]\nanswer_timeout_s = 1.0\n",
    )

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            slow = chat(script(tokens=["z"], prefill_ms=3000))
            answers = await asyncio.gather(
                *(client.post("/v1/chat/completions", json=slow) for _ in range(6))
            )
            assert [a.status_code for a in answers] == [200] * 6
        assert sorted(_starts(log).values()) == [1] * 6

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()
        assert sum(w["rejected"] for w in cluster.state()["workers"]) == 0


def test_a_worker_that_always_says_busy_does_not_stop_the_others():
    config = config_text(fake_worker("w-1", max_num_seqs=2))

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            busy = asyncio.create_task(
                client.post("/v1/chat/completions", json=chat(script(tokens=["n"], busy=True)))
            )
            for _ in range(5):
                answer = await client.post("/v1/chat/completions", json=chat(script(tokens=["y"])))
                assert answer.status_code == 200, answer.text
            busy.cancel()
            await asyncio.gather(busy, return_exceptions=True)

    with running(config, "w-1") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()
