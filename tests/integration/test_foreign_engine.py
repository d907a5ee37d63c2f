"""A third party's engine behind a real gateway: served, and routed around while it says busy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, running, wait_for

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def _worker(worker_id: str, engine: str) -> str:
    """It takes one request at a time, and its worker would let it have four."""
    return (
        f'[[workers]]\nid = "{worker_id}"\nmodel = "m"\nmax_num_seqs = 4\n'
        f'engine = "tests.integration.foreign_engines:{engine}"\nengine_options.pause_s = 0.3\n'
    )


@pytest.mark.parametrize("engine", ["BusyAtCall", "BusyAtFirstItem"])
def test_busy_of_a_foreign_engine_leads_to_the_other_worker(engine: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    async def scenario(cluster: Cluster) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            return await asyncio.gather(
                *(client.post("/v1/chat/completions", json=chat("hi", model="m")) for _ in range(4))
            )

    config = config_text(_worker("w-1", engine) + _worker("w-2", engine))
    with running(config, "w-1", "w-2") as cluster:
        answers = asyncio.run(scenario(cluster))
        assert [answer.status_code for answer in answers] == [200] * 4, [a.text for a in answers]
        assert {a.json()["choices"][0]["message"]["content"] for a in answers} == {"one two three four five"}
        assert {answer.headers["x-worker-id"] for answer in answers} == {"w-1", "w-2"}
        rejected = sum(worker["rejected"] for worker in cluster.state()["workers"])
        assert rejected > 0  # four requests, two engines that take one each: some met a busy one
        wait_for(lambda: all(w["running"] == 0 for w in cluster.state()["workers"]), "all places to be free")
