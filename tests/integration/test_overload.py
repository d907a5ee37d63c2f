"""Three times as many requests as the workers can serve: what is served, who waits, who is refused."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, fake_worker, running, script
from tests.integration.test_keys import bearer, becomes, keys

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SLOTS = 4
"""Of both workers."""
TOKENS = 16
DELAY_MS = 25
OVERLOAD_S = 4.0
MARK = "overload-"
"""The ids of its requests begin with it."""
BODY = chat(script(tokens=["a"], repeat=TOKENS, delay_ms=DELAY_MS))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    two: dict[str, Any] = {"max_num_seqs": SLOTS // 2, "max_waiting": 0}
    with running(config_text(fake_worker("w-1", **two) + fake_worker("w-2", **two)), "w-1", "w-2") as cluster:
        yield cluster


@dataclass
class Told:
    """What became of the requests of one key."""

    seconds: list[float] = field(default_factory=list)
    """Of those that were answered."""
    ends: dict[str, float] = field(default_factory=dict)
    refused_s: list[float] = field(default_factory=list)
    refusals: list[httpx.Response] = field(default_factory=list)

    def p95(self) -> float:
        return sorted(self.seconds)[int(0.95 * (len(self.seconds) - 1))]


async def ask(client: httpx.AsyncClient, key: str, told: Told, mark: str = MARK) -> None:
    began = time.monotonic()
    request_id = mark + secrets.token_hex(4)
    headers = bearer(key) | {"x-request-id": request_id}
    answer = await client.post("/v1/chat/completions", json=BODY, headers=headers)
    ended = time.monotonic()
    if answer.status_code == 200:
        assert answer.json()["choices"][0]["message"]["content"] == "a" * TOKENS
        told.seconds.append(ended - began)
        told.ends[request_id] = ended
    else:
        told.refused_s.append(ended - began)
        told.refusals.append(answer)


def served_s(log: str) -> dict[str, float]:
    """How long each answered request of the overload was at a worker, by the gateway's access lines."""
    lines = re.findall(rf"request ({MARK}\w*): .* -> 200, ([\d.]+) s, .*queue_s ([\d.]+)", log)
    return {request_id: float(whole) - float(queued) for request_id, whole, queued in lines}


async def flow(client: httpx.AsyncClient, key: str, told: Told, a_second: float) -> None:
    """So many requests a second, whatever becomes of them."""
    requests = []
    began = time.monotonic()
    for number in range(int(a_second * OVERLOAD_S)):
        await asyncio.sleep(max(0.0, began + number / a_second - time.monotonic()))
        requests.append(asyncio.create_task(ask(client, key, told)))
    await asyncio.gather(*requests)


async def at_capacity(client: httpx.AsyncClient, key: str) -> Told:
    """As many clients as there are slots, each one request after the other."""
    told = Told()

    async def one() -> None:
        for _ in range(2):
            await ask(client, key, told, mark="before-")

    await asyncio.gather(*(one() for _ in range(SLOTS)))
    return told


def test_overload_costs_nothing_but_what_is_too_much(cluster: Cluster):
    key = {
        name: keys(cluster, "create", name, "--priority", priority)
        for name, priority in (
            ("greedy", "normal"),
            ("light", "normal"),
            ("person", "interactive"),
            ("jobs", "batch"),
        )
    }
    told = {name: Told() for name in key}
    with httpx.Client(base_url=cluster.url()) as client:
        becomes(client, 401)  # so the keys are known

    async def scenario() -> tuple[Told, float]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S, limits=limits) as client:
            begun = time.monotonic()
            alone = await at_capacity(client, key["light"])
            capacity = len(alone.seconds) / (time.monotonic() - begun)
            begun = time.monotonic()
            rates = {"greedy": 3 * capacity, "light": 1.5, "person": 1.5, "jobs": 1.0}
            await asyncio.gather(
                *(flow(client, key[name], told[name], a_second) for name, a_second in rates.items())
            )
            return alone, begun

    alone, begun = asyncio.run(scenario())
    assert not alone.refusals
    service_s = sorted(alone.seconds)[len(alone.seconds) // 2]

    # As long as more waits than can be served, no slot stands idle: as much is served as without the
    # overload, whatever else this machine does meanwhile.
    last = max(told["greedy"].ends.values())
    busy_s = sum(
        max(0.0, min(end, last) - (end - at_worker_s))
        for request_id, at_worker_s in served_s(cluster.log("gw-1")).items()
        for end in [one.ends[request_id] for one in told.values() if request_id in one.ends]
    )
    goodput = busy_s / (SLOTS * (last - begun))
    print(f"goodput {goodput:.3f} of capacity")
    assert goodput >= 0.95, (goodput, service_s)

    # What is too much is refused at once, with a word on when to come again; and it is the greedy key's.
    greedy = told["greedy"]
    assert len(greedy.refusals) > len(greedy.seconds) / 2
    assert sorted(greedy.refused_s)[len(greedy.refused_s) // 2] < service_s
    for refusal in greedy.refusals:
        assert refusal.status_code == 429
        assert refusal.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refusal.headers["retry-after"]) <= 36
    for name in ("light", "person", "jobs"):
        assert not told[name].refusals, name

    # The others wait for two service times at most, and a half for this machine's other work.
    for name in ("light", "person"):
        assert told[name].p95() <= 3.5 * service_s, (name, told[name].seconds, service_s)
    # The class batch is served last, but served.
    assert len(told["jobs"].seconds) == int(OVERLOAD_S)
    later = sorted(told["jobs"].ends.values())[1:]  # the first came while there was room
    assert min(later) > max(told["person"].ends.values())
    cluster.wait_idle()
