"""Nothing that was accepted is lost: workers are killed and drained under load, and a gateway is restarted.

Four workers of eight slots and two gateways under the supervisor, 24 clients, half of them with streams.
Every answer is compared with the right one. SURVIVAL_REQUESTS and SURVIVAL_KILLS set how long it goes
on: at least 1000 and 10 for the acceptance, a short form without them. SURVIVAL_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from clusterctl.processes import read_record
from tests.faults.aftermath import state, total, unscathed
from tests.integration.cluster import PATIENCE_S, chat, fake_worker, script, sse, text_of, wait_for
from tests.integration.operating import Operator, operating

REQUESTS = int(os.environ.get("SURVIVAL_REQUESTS", "200"))
KILLS = int(os.environ.get("SURVIVAL_KILLS", "2"))
SEED = int(os.environ.get("SURVIVAL_SEED", "0")) or random.randrange(1, 1_000_000)
CLIENTS = 24
TOKENS = 30
DELAY_MS = 30
KILL_EVERY_S = 2.0
WORKERS = ("w-1", "w-2", "w-3", "w-4")
GATEWAYS = ("gw-1", "gw-2")
RESTARTED = "gw-2"
MOST_STARTS = 1.2
"""Of engine work, for each request that was answered."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120 + REQUESTS // 5 + 20 * KILLS)]


class Clients:
    """What they asked, and what became of it. They go on until they are told that it is enough."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._number = 0
        self.enough = False
        self.right = 0
        self.excepted: Counter[str] = Counter()
        """Connections that broke with the gateway that was restarted."""
        self.wrong: list[str] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(CLIENTS)))

    async def _client(self, client_number: int) -> None:
        gateway_id = GATEWAYS[client_number % 2]
        async with httpx.AsyncClient(timeout=PATIENCE_S * 3) as client:
            while not self.enough:
                try:
                    url = self._operator.home.http_url(gateway_id).read_text().strip()
                    outcome = await self._ask(
                        client, f"{url}/v1/chat/completions", live=client_number % 4 < 2
                    )
                except (httpx.TransportError, FileNotFoundError, httpx.UnsupportedProtocol) as error:
                    outcome = f"{gateway_id}: {error!r}"
                    if gateway_id == RESTARTED:
                        self.excepted[type(error).__name__] += 1
                        outcome = ""
                        await asyncio.sleep(0.2)
                else:
                    self.right += not outcome
                if outcome:
                    self.wrong.append(outcome)

    async def _ask(self, client: httpx.AsyncClient, url: str, *, live: bool) -> str:
        """What is wrong with the answer."""
        self._number += 1
        tokens = [f"{self._number}.{position} " for position in range(TOKENS)]
        body = chat(script(tokens=tokens, delay_ms=DELAY_MS))
        text, used = await (_stream(client, url, body) if live else _whole(client, url, body))
        if (text, used) == ("".join(tokens), TOKENS):
            return ""
        return f"request {self._number}, {used} tokens: {text!r}"


async def _whole(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[str, int]:
    answer = await client.post(url, json=body)
    if answer.status_code != 200:
        return answer.text, answer.status_code
    found = answer.json()
    return found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"]


async def _stream(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[str, int]:
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", url, json=body) as answer:
        if answer.status_code != 200:
            return (await answer.aread()).decode(), answer.status_code
        events = sse([line async for line in answer.aiter_lines()])
    if events[-1] != "[DONE]":
        return f"{text_of(events)}, and then {events[-1]}", 0
    return text_of(events), events[-2]["usage"]["completion_tokens"]


class Misfortune:
    """What happens to the processes: kills at a steady pace, one drain after the other, one restart."""

    def __init__(self, operator: Operator, rng: random.Random) -> None:
        self._operator = operator
        self._rng = rng
        self.kills = 0
        self.drains = 0

    async def kill_on(self) -> None:
        while self.kills < KILLS:
            await asyncio.sleep(KILL_EVERY_S)
            if self.kills == 1:
                self._kill(RESTARTED)
            running = [worker_id for worker_id in WORKERS if self._pid(worker_id)]
            if running:
                self._kill(self._rng.choice(running))
                self.kills += 1

    async def drain_on(self, clients: Clients) -> None:
        while not clients.enough:
            await asyncio.sleep(KILL_EVERY_S)
            ready = [w["id"] for w in state(self._operator.home)["workers"] if w["state"] == "ready"]
            if ready:
                self.drains += await asyncio.to_thread(self._drain, str(self._rng.choice(ready)))

    def _drain(self, worker_id: str) -> bool:
        """Whether it was there to be drained; it finishes what it has, and takes requests again."""
        try:
            self._operator.run("drain", worker_id, "--timeout", "20")
            self._operator.run("undrain", worker_id)
        except AssertionError as error:  # it was killed just before, or is killed meanwhile
            print(str(error).splitlines()[0])
            return False
        return True

    def _kill(self, process_id: str) -> None:
        os.kill(self._pid(process_id), signal.SIGKILL)

    def _pid(self, process_id: str) -> int:
        record = read_record(self._operator.home.run / f"{process_id}.pid")
        return 0 if record is None else record.pid


async def _scenario(operator: Operator, clients: Clients, misfortune: Misfortune) -> None:
    asking = asyncio.create_task(clients.run())
    draining = asyncio.create_task(misfortune.drain_on(clients))
    await misfortune.kill_on()
    while clients.right < REQUESTS or not misfortune.drains:
        await asyncio.sleep(0.1)
    clients.enough = True
    await asyncio.gather(asking, draining)


def _configuration(starts: Path) -> str:
    gateways = "".join(f'[[gateways]]\nid = "{name}"\nhttp = "127.0.0.1:0"\n' for name in GATEWAYS)
    workers = [
        fake_worker(name, max_num_seqs=8, engine_options={"start_log": str(starts)}) for name in WORKERS
    ]
    return "version = 1\n" + gateways + "".join(workers)


def test_workers_are_killed_and_drained_and_a_gateway_is_restarted_and_no_token_is_lost(tmp_path: Path):
    print(f"SURVIVAL_SEED={SEED}")
    starts = tmp_path / "starts"
    with operating() as operator:
        operator.home.path.mkdir(mode=0o700)
        operator.home.config.write_text(_configuration(starts))
        operator.run("up", "--wait")
        clients, misfortune = Clients(operator), Misfortune(operator, random.Random(SEED))
        with unscathed(operator.home, GATEWAYS):
            begun = starts.read_text().count("\n")
            began = time.monotonic()
            asyncio.run(_scenario(operator, clients, misfortune))
            seconds = time.monotonic() - began
            work = (starts.read_text().count("\n") - begun) / max(1, clients.right)
            takeovers = sum(total(operator.home, "studiofleet_takeovers_total", each) for each in GATEWAYS)
            print(
                f"{clients.right} answers in {seconds:.0f} s, {misfortune.kills} kills,"
                f" {misfortune.drains} drains, {takeovers:.0f} take-overs, {work:.3f} starts an answer,"
                f" excepted {dict(clients.excepted)}"
            )
            assert clients.wrong == []
            assert clients.right >= REQUESTS
            assert clients.excepted
            assert takeovers
            assert work < MOST_STARTS
            operator.run("up", "--wait")
        assert all(worker["breaker"] == "closed" for worker in state(operator.home)["workers"])
        operator.run("down")
        wait_for(lambda: operator.processes() == [], "everything to have ended")
