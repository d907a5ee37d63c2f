"""Models that come and go on real processes: under a budget, by demand, with one gateway and with two."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.cluster import (
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    sse,
    text_of,
    wait_for,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BUDGET = "[residency]\nmemory_budget_mb = 200\n"
MODELS = ("a", "b", "c")


def on_demand(name: str, load_s: float = 0.2, **settings: Any) -> str:
    """A worker `NAME` of the model `NAME` that takes 100 MB."""
    options = {"weights_mb": 100, "load_s": load_s, "decode_tokens_per_s": 2000.0}
    options |= settings.pop("engine_options", {})
    return fake_worker(name, model=name, residency="on_demand", engine_options=options, **settings)


@contextmanager
def idle_fleet(config: str, *names: str, gateways: tuple[str, ...] = ("gw-1",)) -> Iterator[Cluster]:
    """A cluster whose workers are all there, without their models."""
    with running(config, gateways=gateways) as cluster:
        for name in names:
            cluster.start("worker", name)
        for gateway in gateways:
            wait_states(cluster, dict.fromkeys(names, "idle"), gateway)
        yield cluster


def wait_states(cluster: Cluster, states: dict[str, str], gateway: str = "gw-1") -> None:
    def reached() -> bool:
        found = {w["id"]: w["state"] for w in cluster.state(gateway)["workers"]}
        return all(found.get(name) == state for name, state in states.items())

    wait_for(reached, f"{states} at {gateway}")


def ask(cluster: Cluster, model: str, content: str = "hello", **headers: str) -> httpx.Response:
    url = cluster.url() + "/v1/chat/completions"
    return httpx.post(url, json=chat(content, model=model), headers=headers, timeout=100)


def loads(cluster: Cluster) -> dict[str, int]:
    """How often each worker loaded its model."""
    return {name: len(re.findall(r"is ready after", cluster.log(name))) for name in MODELS}


def loads_without_use(cluster: Cluster) -> int:
    """Over all workers: how often a model was freed that nobody had used since it was loaded."""
    count = 0
    for name in MODELS:
        used = True
        for line in cluster.log(name).splitlines():
            if "is ready after" in line:
                used = False
            elif "accepted from" in line:
                used = True
            elif "frees its model" in line and not used:
                count += 1
    return count


class Watch:
    """Looks at the workers' claims all the time; remembers the most that was held at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._run = cluster.home.run
        self.most_mb = 0
        self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.005):
            held = 0
            for path in self._run.glob("*.memory"):
                try:
                    held += int(path.read_text() or 0)
                except FileNotFoundError:
                    continue
            self.most_mb = max(self.most_mb, held)
            self.looks += 1

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def ask_all(urls: list[str], requests: list[tuple[str, float]]) -> list[int]:
    """The status of every answer; each is asked for after its pause, as a stream and as a whole by turns."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=200, limits=limits) as client:

        async def one(number: int, model: str, at_s: float) -> int:
            await asyncio.sleep(at_s)
            body = chat(f"request {number}", model=model, max_tokens=20, stream=number % 2 == 0)
            answer = await client.post(urls[number % len(urls)] + "/v1/chat/completions", json=body)
            if body["stream"] and answer.status_code == 200:
                events = sse(answer.text.splitlines())
                return 200 if text_of(events) and events[-1] == "[DONE]" else 599
            return answer.status_code

        tasks = [one(number, model, at_s) for number, (model, at_s) in enumerate(requests)]
        return list(await asyncio.gather(*tasks))


def test_a_cold_model_is_loaded_for_whoever_waits_and_its_state_is_shown():
    with idle_fleet(config_text(on_demand("a", load_s=1.5)), "a") as cluster:
        models = cluster.url() + "/v1/models/a"
        assert httpx.get(models).json()["state"] == "not-loaded"
        assert httpx.get(cluster.url() + "/health/ready").status_code == 200
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(ask(cluster, "a").status_code))
        asking.start()
        wait_for(lambda: httpx.get(models).json()["state"] == "loading", "the load to show")
        asking.join()
        assert answers == [200]
        assert httpx.get(models).json()["state"] == "loaded"


def test_three_models_under_a_budget_for_two_are_freed_in_the_order_of_their_last_use():
    config = config_text(
        "".join(on_demand(name) for name in MODELS), extra=BUDGET + '[log]\nlevel = "debug"\n'
    )
    with idle_fleet(config, *MODELS) as cluster, Watch(cluster) as watch:
        rng = random.Random(7)
        resident: list[str] = []
        expected = 0
        for model in (rng.choice(MODELS) for _ in range(30)):
            if model not in resident:
                expected += 1
                resident = resident[-1:]
            resident = [name for name in resident if name != model] + [model]
            assert ask(cluster, model).status_code == 200
            held = {w["id"] for w in cluster.state()["workers"] if w["state"] == "ready"}
            assert held == set(resident)
        assert sum(loads(cluster).values()) == expected
        assert loads_without_use(cluster) == 0
    assert watch.looks > 100
    assert watch.most_mb == 200


@pytest.mark.parametrize("gateways", [("gw-1",), ("gw-1", "gw-2")])
def test_sixty_mixed_requests_for_three_models_under_a_budget_for_two(gateways: tuple[str, ...]):
    config = config_text(
        "".join(on_demand(name, max_num_seqs=2) for name in MODELS),
        gateways=gateways,
        extra=BUDGET + '[log]\nlevel = "debug"\n',
    )
    with idle_fleet(config, *MODELS, gateways=gateways) as cluster, Watch(cluster) as watch:
        rng = random.Random(11)
        requests = [(rng.choice(MODELS), rng.uniform(0, 8)) for _ in range(60)]
        urls = [cluster.url(gateway) for gateway in gateways]
        assert asyncio.run(ask_all(urls, requests)) == [200] * 60
        counts = loads(cluster)
        assert loads_without_use(cluster) == 0
        cluster.wait_idle()
    assert watch.most_mb == 200
    assert all(counts.values())
    assert sum(counts.values()) <= 40, counts
