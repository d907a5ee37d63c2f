"""What `/metrics` tells is what clients saw, and only of what there is."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.measures import MEASURES
from tests.faults.aftermath import metrics, total
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    stream_chat,
    wait_for,
)

pytestmark = pytest.mark.integration

REQUESTS = int(os.environ.get("METRICS_REQUESTS", "100"))
"""500 for the acceptance."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    workers = fake_worker("w-1", kv_tokens=1000) + fake_worker("w-2", kv_tokens=1000)
    with running(config_text(workers), "w-1", "w-2") as found:
        yield found


def test_every_measure_of_the_table_is_told_and_no_other(cluster: Cluster):
    text = httpx.get(cluster.url() + "/metrics", timeout=PATIENCE_S).text
    told = set(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))
    wanted = {(m.name + ("_total" if m.kind == "counter" else ""), m.kind) for m in MEASURES}
    assert {(name, kind) for name, kind in told if not name.endswith("_created")} == wanted


def test_the_labels_are_those_of_the_table(cluster: Cluster):
    httpx.post(cluster.url() + "/v1/chat/completions", json=chat("hi"), timeout=PATIENCE_S)
    for series in metrics(cluster.home):
        name, _, labels = series.partition("{")
        measure = next(
            m for m in MEASURES if re.fullmatch(rf"{m.name}(_total|_created|_sum|_count|_bucket)?", name)
        )
        assert set(re.findall(r'(\w+)="', labels)) - {"le"} == set(measure.labels), series


def test_counters_agree_exactly_with_what_clients_counted(cluster: Cluster):
    before = metrics(cluster.home)
    ended: Counter[str] = Counter()
    tokens: list[int] = []
    limit = asyncio.Semaphore(12)

    async def whole(client: httpx.AsyncClient, **fields: Any) -> None:
        answer = await client.post("/v1/chat/completions", json=chat("", **fields))
        found = answer.json()
        codes = {200: "ok", 400: "invalid_request"}
        ended[codes.get(answer.status_code) or found["error"]["code"]] += 1
        if answer.status_code == 200:
            tokens.append(found["usage"]["completion_tokens"])

    async def leaves(client: httpx.AsyncClient) -> None:
        endless = chat(script(tokens=["a"], repeat=100_000, delay_ms=5), stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=endless) as answer:
            async for _line in answer.aiter_lines():
                break
        ended["client_closed_request"] += 1

    async def one(client: httpx.AsyncClient, number: int) -> None:
        async with limit:
            match number % 10:
                case 0:
                    await whole(client, temperature=-1)
                case 1:
                    await whole(client, model=f"nobody-{number}")
                case 2:
                    await leaves(client)
                case 3:
                    failing = script(tokens=["x", "y"], raise_at=0, once=True)
                    await whole(client, messages=[{"role": "user", "content": failing}])
                case 4:
                    told = {"include_usage": True}
                    events = await stream_chat(client, chat(script(tokens=["a", "b"]), stream_options=told))
                    ended["ok"] += 1
                    tokens.append(events[-2]["usage"]["completion_tokens"])
                case _:
                    answer = script(tokens=["a", "b", "c"], delay_ms=1)
                    await whole(client, messages=[{"role": "user", "content": answer}])

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            await asyncio.gather(*(one(client, number) for number in range(REQUESTS)))

    asyncio.run(scenario())
    cluster.wait_idle()

    def told(name: str) -> dict[str, float]:
        after = metrics(cluster.home)
        grown = {series: value - before.get(series, 0) for series, value in after.items()}
        return {series: value for series, value in grown.items() if series.startswith(name) and value}

    wait_for(lambda: sum(told("studiofleet_requests_total").values()) == REQUESTS, "all to be counted")
    outcomes = told("studiofleet_requests_total")
    codes = {re.findall(r'code="(\w+)"', series)[0]: value for series, value in outcomes.items()}
    assert codes == ended
    failed_over = {'studiofleet_retries_total{reason="engine_failed"}': REQUESTS // 10}
    assert told("studiofleet_retries_total") == failed_over
    assert list(told("vllm:generation_tokens_total").values()) == [sum(tokens)]
    assert list(told("vllm:e2e_request_latency_seconds_count").values()) == [ended["ok"]]
    queued = sum(told("vllm:request_queue_time_seconds_count").values())
    assert queued == ended["ok"] + ended["client_closed_request"]


def test_a_restart_is_counted_and_a_worker_that_is_gone_has_no_figures(cluster: Cluster):
    before = metrics(cluster.home)
    assert before['studiofleet_worker_running{worker="w-2"}'] == 0
    cluster.signal("w-2", signal.SIGKILL)
    cluster.wait_exit("w-2")
    wait_for(
        lambda: metrics(cluster.home)['studiofleet_worker_ready{worker="w-2"}'] == 0, "its loss to be told"
    )
    assert [series for series in metrics(cluster.home) if 'worker="w-2"' in series] == [
        'studiofleet_worker_ready{worker="w-2"}'
    ]
    cluster.start("worker", "w-2")
    cluster.wait_ready("w-1", "w-2")
    assert total(cluster.home, 'studiofleet_worker_restarts_total{worker="w-2"}') == 1
    after = metrics(cluster.home)
    assert {series for series in after if 'worker="w-2"' in series} == {
        series for series in before if 'worker="w-2"' in series
    }
