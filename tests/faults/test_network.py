"""What a network does to the way between worker and gateway: silence, half of it, cuts, late bytes.

Two workers, each behind a proxy of its own, and a gateway over tcp. Streams run while it happens, and end
as if nothing had. FAULTS_FULL=1 takes the heartbeats of the default configuration instead of quick ones.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from clusterctl.wire_keys import ensure_pairs
from protocol.config import HeartbeatConfig
from protocol.configfile import read_config
from tests.faults.aftermath import total, unscathed
from tests.faults.proxy import Proxy, proxies
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    script,
    stream_chat,
    text_of,
    wait_for,
)

FULL = bool(os.environ.get("FAULTS_FULL"))
HEARTBEAT = HeartbeatConfig() if FULL else HeartbeatConfig(interval_s=0.2, suspect_s=0.6, lost_s=1.2)
CUT_S = 3 * HEARTBEAT.lost_s
TOKENS = [f"{number} " for number in range(80 if not FULL else int(30 * HEARTBEAT.lost_s))]
"""Streams go on, at a token each 50 ms, when a silence is noticed."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60 + 10 * CUT_S)]


class Streams:
    """Four streams that run, some of them at `victim`, which is about to be harmed."""

    def __init__(self, cluster: Cluster, pool: ThreadPoolExecutor, count: int) -> None:
        self._cluster = cluster
        self._streams = [pool.submit(self._read) for _ in range(count)]
        self.victim = str(wait_for(self._serving, "a worker to have a stream"))
        self.other = "w-2" if self.victim == "w-1" else "w-1"

    def _serving(self) -> str:
        """The one with the most of them: another may be left alone for what happened to it before."""
        running = {worker["id"]: worker["running"] for worker in self._cluster.state()["workers"]}
        if sum(running.values()) < len(self._streams):
            return ""
        return str(max(running, key=lambda worker_id: running[worker_id]))

    def _read(self) -> str:
        async def read() -> str:
            async with httpx.AsyncClient(base_url=self._cluster.url(), timeout=5 * PATIENCE_S) as client:
                events = await stream_chat(client, chat(script(tokens=TOKENS, delay_ms=50)))
                assert events[-1] == "[DONE]", events[-1]
                return text_of(events)

        return asyncio.run(read())

    @property
    def done(self) -> bool:
        return all(stream.done() for stream in self._streams)

    def end_whole(self) -> None:
        """Nothing is missing, and nothing came twice."""
        assert [stream.result() for stream in self._streams] == ["".join(TOKENS)] * len(self._streams)


@dataclass
class Field:
    """A cluster whose network is ours."""

    cluster: Cluster
    ways: dict[str, Proxy]
    pool: ThreadPoolExecutor

    def begin(self, count: int = 4) -> Streams:
        return Streams(self.cluster, self.pool, count)

    def hears(self, words: str, worker_id: str) -> Callable[[], bool]:
        """Whether its log says this once more than now."""
        before = self.cluster.log(worker_id).count(words)
        return lambda: self.cluster.log(worker_id).count(words) > before

    def wait_for_loss(self, worker_id: str) -> None:
        wait_for(lambda: self.cluster.worker(worker_id)["state"] == "stopped", "the worker to be missed")

    def wait_ready(self) -> None:
        self.cluster.wait_ready(*self.ways)

    def is_served(self) -> str:
        """By whom a request is, at once."""
        began = time.monotonic()
        url = self.cluster.url() + "/v1/chat/completions"
        answer = httpx.post(url, json=chat(script(tokens=["x"])), timeout=PATIENCE_S)
        assert (answer.status_code, time.monotonic() - began < PATIENCE_S / 3) == (200, True)
        return answer.headers["x-worker-id"]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _configuration(port: int) -> str:
    beats = "".join(
        f"heartbeat.{n} = {getattr(HEARTBEAT, n)}\n" for n in ("interval_s", "suspect_s", "lost_s")
    )
    text = config_text(fake_worker("w-1") + fake_worker("w-2"), extra=beats)
    return text.replace(
        'http = "127.0.0.1:0"\n', f'http = "127.0.0.1:0"\nlisten = ["tcp://127.0.0.1:{port}"]\n'
    )


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    port = _free_port()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sf-test-"))
        cluster = Cluster(Path(folder) / "home", _configuration(port))
        stack.callback(cluster.stop)
        ways = dict(zip(("w-1", "w-2"), stack.enter_context(proxies(port, 2)), strict=True))
        pool = stack.enter_context(ThreadPoolExecutor(8))
        ensure_pairs(cluster.home, read_config(cluster.home.config))
        cluster.start("gateway", "gw-1")
        cluster.url()
        for worker_id, way in ways.items():
            cluster.home.config.write_text(_configuration(way.port))  # each reads it once, at its start
            cluster.start("worker", worker_id)
            cluster.wait_ready(worker_id)
        yield Field(cluster, ways, pool)


# FC-34: after a network loss the instance keeps running and the worker never rejoins
def test_fc_34_after_a_silence_of_three_limits_the_worker_is_back_by_itself(field: Field):
    with unscathed(field.cluster.home):
        streams = field.begin()
        way, gives_up = field.ways[streams.victim], field.hears("given up", streams.victim)
        takeovers = total(field.cluster.home, "studiofleet_takeovers_total")
        way.stall()
        silent_since = time.monotonic()
        field.wait_for_loss(streams.victim)
        assert field.is_served() == streams.other
        streams.end_whole()
        assert total(field.cluster.home, "studiofleet_takeovers_total") > takeovers
        wait_for(gives_up, "the worker to end what nobody reads")
        time.sleep(max(0.0, CUT_S - (time.monotonic() - silent_since)))  # the case: so long a silence
        way.flow()
        field.wait_ready()


def test_after_a_cut_of_three_limits_both_workers_are_back_by_themselves(field: Field):
    """Nobody serves meanwhile, and the streams wait."""
    with unscathed(field.cluster.home):
        streams = field.begin()
        for way in field.ways.values():
            way.cut()
        time.sleep(CUT_S)  # the case: so long a cut
        assert not any(worker["pid"] for worker in field.cluster.state()["workers"])
        for way in field.ways.values():
            way.mend()
        streams.end_whole()
        field.wait_ready()


def test_a_worker_that_is_heard_but_hears_nothing_loses_its_requests_to_the_other(field: Field):
    """Half-open: its heartbeats come, what is said to it does not."""
    with unscathed(field.cluster.home):
        streams = field.begin()
        misses = field.hears("its gateway was silent", streams.victim)
        breaks = field.hears("the connection broke", streams.victim)  # ZeroMQ's own limit may be the shorter
        field.ways[streams.victim].stall("down")
        wait_for(lambda: misses() or breaks(), "the worker to miss the gateway")
        streams.end_whole()
        field.ways[streams.victim].flow()
        field.wait_ready()


def test_a_worker_that_hears_but_is_not_heard_loses_its_requests_to_the_other(field: Field):
    """The other half; what it said arrives afterwards, and nobody listens to it."""
    with unscathed(field.cluster.home):
        streams = field.begin()
        field.ways[streams.victim].stall("up")
        field.wait_for_loss(streams.victim)
        field.ways[streams.victim].flow()  # while the streams run elsewhere
        streams.end_whole()
        field.wait_ready()


def test_what_an_old_connection_still_says_after_the_new_one_registered_counts_for_nothing(field: Field):
    """Reordered: the new connection is there first, then the words of the old one arrive."""
    with unscathed(field.cluster.home):
        streams = field.begin(8)
        way = field.ways[streams.victim]
        way.stall("up")
        time.sleep(HEARTBEAT.lost_s / 3)  # so that words of it are on their way
        way.orphan()
        wait_for(lambda: way.connections, "the worker to connect again")
        field.cluster.wait_ready(streams.victim)
        way.flow()
        streams.end_whole()
        way.cut()
        way.mend()
        field.wait_ready()


def test_connections_that_break_again_and_again_lose_nothing(field: Field):
    with unscathed(field.cluster.home):
        streams = field.begin(8)
        while not streams.done:
            for way in field.ways.values():
                way.cut()
                way.mend()
            time.sleep(0.7)  # the case: again and again, with time for a few tokens
        streams.end_whole()
        field.wait_ready()
