"""What an operator may do to a gateway over HTTP: only with the key, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from clusterctl.admin import read_state
from protocol.addresses import SUPERVISOR
from protocol.keys import read_admin_key
from protocol.locks import locked
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
    wait_for,
)

pytestmark = pytest.mark.integration

CONFIG = config_text(fake_worker("w-1", drain_timeout_s=20.0) + fake_worker("w-2"))


class Operator:
    """Has the key of a cluster's home."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.url = cluster.url()
        self.headers = {"authorization": f"Bearer {read_admin_key(cluster.home)}"}

    def post(self, path: str, **more: object) -> httpx.Response:
        arguments = {"headers": self.headers, "timeout": PATIENCE_S, **more}
        return httpx.post(f"{self.url}/admin/{path}", **arguments)  # type: ignore[arg-type]

    def wait_state(self, worker_id: str, state: str) -> None:
        wait_for(lambda: self.cluster.worker(worker_id).get("state") == state, f"{worker_id} to be {state}")


@pytest.fixture
def operator() -> Iterator[Operator]:
    with running(CONFIG, "w-1") as cluster:
        cluster.take_key()
        yield Operator(cluster)


def test_actions_take_the_key_and_the_state_does_not(operator):
    for path in ("workers/w-1/drain", "workers/w-1/undrain", "reload"):
        for headers, status in (({}, 401), ({"authorization": "Bearer wrong"}, 403)):
            answer = operator.post(path, headers=headers)
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
            assert "access-control-allow-origin" not in answer.headers
    assert httpx.get(operator.url + "/admin/state").status_code == 200
    assert operator.cluster.worker("w-1")["state"] == "ready"
    assert operator.headers["authorization"].split()[1] not in operator.cluster.log("gw-1")


def test_what_is_unknown_or_makes_no_sense_is_said_in_words(operator):
    assert httpx.get(operator.url + "/admin/reload").status_code == 405
    unknown = operator.post("workers/w-9/drain")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "worker_not_found")
    assert "w-1" in unknown.json()["error"]["message"]
    absent = operator.post("workers/w-2/undrain")
    assert (absent.status_code, absent.json()["error"]["code"]) == (503, "worker_not_connected")
    assert operator.post("workers/w-1/drain", json={"then": "explode"}).status_code == 400
    assert operator.cluster.worker("w-1")["state"] == "ready"


def test_a_drained_worker_stays_and_takes_requests_again_when_told(operator):
    answer = operator.post("workers/w-1/drain")
    assert answer.status_code == 202
    assert answer.json()["pid"] == operator.cluster.processes["w-1"].pid
    operator.wait_state("w-1", "draining")
    assert operator.post("workers/w-1/undrain").status_code == 202
    operator.wait_state("w-1", "ready")
    hello = chat(script(tokens=["hello"]))
    assert httpx.post(operator.url + "/v1/chat/completions", json=hello).status_code == 200


@pytest.mark.parametrize(("then", "code"), [("exit", 0), ("restart", 75)])
def test_running_requests_are_finished_before_a_drained_worker_ends(operator, then, code):
    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=operator.url, timeout=PATIENCE_S) as client:
            body = chat(script(tokens=["a"], repeat=50, delay_ms=20))
            stream = asyncio.create_task(stream_chat(client, body))
            await asyncio.to_thread(wait_for, lambda: operator.cluster.worker("w-1")["running"], "it to run")
            answer = await asyncio.to_thread(operator.post, "workers/w-1/drain", json={"then": then})
            assert answer.status_code == 202
            assert text_of(await stream) == "a" * 50

    asyncio.run(scenario())
    assert operator.cluster.wait_exit("w-1") == code


def test_a_drain_with_a_limit_gives_up_what_is_not_done_and_a_lifted_one_does_not(operator):
    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=operator.url, timeout=PATIENCE_S) as client:

            def begin(count: int) -> asyncio.Task[list[Any]]:
                body = chat(script(tokens=["a"], repeat=count, delay_ms=20))
                return asyncio.create_task(stream_chat(client, body))

            async def drain(timeout_s: float) -> None:
                await asyncio.to_thread(
                    wait_for, lambda: operator.cluster.worker("w-1")["running"], "it to run"
                )
                body = {"timeout_s": timeout_s}
                await asyncio.to_thread(operator.post, "workers/w-1/drain", json=body)
                await asyncio.to_thread(operator.wait_state, "w-1", "draining")

            short = begin(50)
            await drain(0.5)
            await asyncio.to_thread(operator.post, "workers/w-1/undrain")
            assert text_of(await short) == "a" * 50
            given_up = begin(100)
            await drain(0.2)
            await asyncio.to_thread(
                wait_for, lambda: not operator.cluster.worker("w-1")["running"], "it to be given up"
            )
            assert operator.cluster.worker("w-1")["state"] == "draining"
            await asyncio.to_thread(operator.post, "workers/w-1/undrain")
            assert text_of(await given_up) == "a" * 100  # it went on where it was

    asyncio.run(scenario())
    operator.cluster.wait_idle()


def test_reload_reads_the_workers_again_and_says_why_it_cannot(operator):
    home = operator.cluster.home
    text = home.config.read_text()
    home.config.write_text(text + fake_worker("w-3", model="other"))
    assert operator.post("reload").json() == {"workers": 3}
    models = httpx.get(operator.url + "/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["fake-model", "other"]
    home.config.write_text("nonsense")
    refused = operator.post("reload")
    assert refused.status_code == 400
    assert "the old one holds" in refused.json()["error"]["message"]
    assert len(httpx.get(operator.url + "/v1/models").json()["data"]) == 2


def test_a_key_that_others_may_read_is_no_key(operator):
    operator.cluster.home.admin_key.chmod(0o644)
    assert operator.post("reload").status_code == 200
    refused = operator.post("reload")
    assert refused.status_code == 403
    assert "chmod 600" in refused.json()["error"]["message"]


def test_nobody_waits_for_a_worker_that_is_marked_as_down(operator):
    operator.cluster.home.run.mkdir(exist_ok=True)
    operator.cluster.home.down_mark("w-1").touch()
    operator.post("workers/w-1/drain", json={"then": "exit"})
    assert operator.cluster.wait_exit("w-1") == 0
    with locked(operator.cluster.home.lock(SUPERVISOR)):
        operator.post("reload")
        # w-2 is configured, and somebody is there to start it: that is hope
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(operator.url + "/v1/chat/completions", json=chat("hi"), timeout=1.0)
        operator.cluster.home.down_mark("w-2").touch()
        operator.post("reload")
        answer = httpx.post(operator.url + "/v1/chat/completions", json=chat("hi"), timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
    assert "retry-after" in answer.headers
    ready = httpx.get(operator.url + "/health/ready")
    assert ready.status_code == 200


def test_clusterctl_understands_what_is_said_of_a_worker_that_was_never_seen(operator):
    state = read_state(operator.cluster.home, "gw-1")
    assert state is not None
    assert [(worker.id, worker.pid is None) for worker in state.workers] == [("w-1", False), ("w-2", True)]
