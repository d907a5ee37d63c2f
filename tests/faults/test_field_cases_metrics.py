"""FC-92, labels from what clients send: however many names they try, there are as many series as before.

FAULTS_FULL=1 takes the numbers of the field instead of those of a short form.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
from functools import partial
from typing import Any

import httpx
import pytest

from tests.faults.aftermath import metrics, unscathed
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

pytestmark = pytest.mark.integration

FULL = bool(os.environ.get("FAULTS_FULL"))
REQUESTS, RESTARTS = (10_000, 500) if FULL else (500, 2)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "BREW")
PATHS = ("/v1/chat/completions", "/v1/models", "/", "/metrics", "/wp-login.php")


def _anything(rng: random.Random) -> dict[str, Any]:
    """A request with names that nobody else has."""
    name = rng.choice((secrets.token_hex(8), 'a"b\\n{x="1"}', "../" * 9, "ü" * 40))
    path = rng.choice((*PATHS, "/" + secrets.token_urlsafe(8), f"/v1/models/{secrets.token_hex(4)}"))
    body = chat(script(tokens=["x"]), model=rng.choice((name, "fake-model")), user=name, metadata={"k": name})
    headers = {"x-request-id": secrets.token_hex(8), "user-agent": secrets.token_hex(4)}
    return {"method": rng.choice(METHODS), "url": path, "json": body, "headers": headers}


async def _ask(url: str, count: int) -> set[int]:
    rng = random.Random(92)
    limit = asyncio.Semaphore(8)

    async def one(client: httpx.AsyncClient) -> int:
        async with limit:
            return (await client.request(**_anything(rng))).status_code

    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        return set(await asyncio.gather(*(one(client) for _ in range(count))))


def _shape(cluster: Cluster) -> set[str]:
    """The series, with one for all outcomes: their codes come from our own table."""
    return {
        "outcomes" if "_requests_total" in s or "_requests_created" in s else s for s in metrics(cluster.home)
    }


def _is_newer(cluster: Cluster, before: str) -> bool:
    return bool(cluster.worker("w-1")["incarnation"] != before)


# FC-92: metrics labels from user input
@pytest.mark.timeout(3600 if FULL else 120)
def test_fc_92_names_that_clients_make_up_and_restarts_make_no_series():
    config = config_text(fake_worker("w-1") + fake_worker("w-2"))
    with running(config, "w-1", "w-2") as cluster, unscathed(cluster.home):
        before = _shape(cluster)
        size = len(httpx.get(cluster.url() + "/metrics").content)
        assert {200, 404, 405} <= asyncio.run(_ask(cluster.url(), REQUESTS))
        for _ in range(RESTARTS):
            incarnation = cluster.worker("w-1")["incarnation"]
            cluster.signal("w-1", signal.SIGKILL)
            cluster.wait_exit("w-1")
            cluster.start("worker", "w-1")
            wait_for(partial(_is_newer, cluster, incarnation), "the new process")
            cluster.wait_ready("w-1", "w-2")
        assert _shape(cluster) == before
        outcomes = [
            series for series in metrics(cluster.home) if series.startswith("studiofleet_requests_total")
        ]
        assert len(outcomes) <= 8, outcomes
        assert len(httpx.get(cluster.url() + "/metrics").content) < 1.2 * size + 2000
