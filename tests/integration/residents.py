"""Clusters whose models come and go, for tests: who holds how much memory, who was loaded how often."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.integration.cluster import Cluster, chat, fake_worker, running, sse, text_of, wait_for

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
    body = chat(content, model=model, temperature=0, max_tokens=20)
    return httpx.post(url, json=body, headers=headers, timeout=100)


def loads(cluster: Cluster) -> dict[str, int]:
    """How often each worker loaded its model."""
    names = [name for name in cluster.processes if not name.startswith("gw-")]
    return {name: len(re.findall(r"is ready after", cluster.log(name))) for name in names}


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
        self.most_loaded = 0
        self.looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.005):
            held = loaded = 0
            for path in self._run.glob("*.memory"):
                try:
                    held += int(path.read_text() or 0)
                    loaded += 1
                except FileNotFoundError:
                    continue
            self.most_mb = max(self.most_mb, held)
            self.most_loaded = max(self.most_loaded, loaded)
            self.looks += 1

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def ask_all(urls: list[str], requests: list[tuple[str, float]]) -> Counter[str]:
    """What came of all: `ok`, or an error's code. Each is asked after its pause, by turns as a stream."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=400, limits=limits) as client:

        async def one(number: int, model: str, at_s: float) -> str:
            await asyncio.sleep(at_s)
            streamed = number % 2 == 0
            body = chat(f"request {number}", model=model, max_tokens=20, stream=streamed)
            answer = await client.post(urls[number % len(urls)] + "/v1/chat/completions", json=body)
            if answer.status_code != 200:
                return str(answer.json()["error"]["code"])
            if not streamed:
                return "ok"
            events = sse(answer.text.splitlines())
            return "ok" if text_of(events) and events[-1] == "[DONE]" else f"ends with {events[-1:]}"

        tasks = [one(number, model, at_s) for number, (model, at_s) in enumerate(requests)]
        return Counter(await asyncio.gather(*tasks))
