"""Processes that are killed, stopped, replaced: what ends, what goes on, what comes back."""

from __future__ import annotations

import asyncio
import signal
import time

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
    wait_for,
)

pytestmark = pytest.mark.integration

SLOW = script(tokens=["a"], repeat=100, delay_ms=20)


def _running(cluster: Cluster, worker_id: str) -> int:
    return int(cluster.worker(worker_id).get("running", 0))


async def _until(condition, what: str) -> None:
    await asyncio.to_thread(wait_for, condition, what)


def test_a_killed_worker_ends_its_stream_with_an_error_event_and_harms_no_other():
    workers = fake_worker("w-1", model="one") + fake_worker("w-2", model="two")
    config = config_text(workers, extra="[takeover]\nenabled = false\n")

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            endless = script(tokens=["a"], repeat=100_000, delay_ms=20)
            doomed = asyncio.create_task(stream_chat(client, chat(endless, model="one")))
            other = asyncio.create_task(stream_chat(client, chat(SLOW, model="two")))
            await _until(lambda: _running(cluster, "w-1") and _running(cluster, "w-2"), "both to run")
            await asyncio.sleep(0.2)  # let tokens flow: the case is a loss in mid-stream
            killed = time.monotonic()
            cluster.signal("w-1", signal.SIGKILL)
            events = await doomed
            assert time.monotonic() - killed < 10.0
            assert events[-1]["error"]["code"] == "worker_lost"
            assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
            assert "[DONE]" not in events
            assert text_of(await other) == "a" * 100

            cluster.wait_exit("w-1")
            cluster.start("worker", "w-1")
            await asyncio.to_thread(cluster.wait_ready, "w-1")
            assert text_of(await stream_chat(client, chat(script(tokens=["back"]), model="one"))) == "back"

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()


def test_the_stream_of_a_killed_worker_goes_on_at_another_one():
    """Token for token: nothing is missing and nothing comes twice."""
    config = config_text(fake_worker("w-1") + fake_worker("w-2"))
    tokens = [f"{number} " for number in range(300)]

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            body = chat(script(tokens=tokens, delay_ms=20), stream_options={"include_usage": True})
            streams = [asyncio.create_task(stream_chat(client, body)) for _ in range(3)]
            for _ in range(2):  # what is alike may be at one worker
                taken = lambda: [w for w in ("w-1", "w-2") if _running(cluster, w)]  # noqa: E731
                await _until(taken, "something to run")
                (victim, *_others) = taken()
                cluster.signal(victim, signal.SIGKILL)
                cluster.wait_exit(victim)
                cluster.start("worker", victim)
                await asyncio.to_thread(cluster.wait_ready, victim)
            for stream in streams:
                events = await stream
                assert events[-1] == "[DONE]"
                assert text_of(events) == "".join(tokens)
                assert events[-2]["usage"]["completion_tokens"] == 300

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        cluster.wait_idle()


def test_a_request_whose_worker_dies_before_its_first_token_runs_on_another():
    config = config_text(fake_worker("w-1") + fake_worker("w-2"))

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            body = chat(script(tokens=["once"], prefill_ms=5000))
            task = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            taken = lambda: [w for w in ("w-1", "w-2") if _running(cluster, w)]  # noqa: E731
            await _until(taken, "a worker to take it")
            victim = (await asyncio.to_thread(taken))[0]
            cluster.signal(victim, signal.SIGKILL)
            answer = await task
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == "once"
            assert answer.headers["x-worker-id"] != victim

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))


def test_a_poison_request_is_not_given_to_a_third_worker():
    config = config_text(fake_worker("w-1") + fake_worker("w-2") + fake_worker("w-3"))
    with running(config, "w-1", "w-2", "w-3") as cluster:
        body = chat(script(tokens=["x"], exit_at=0))
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")
        assert answer.json()["error"]["code"] == "poison_request"

        def alive() -> list[str]:
            return [w for w in ("w-1", "w-2", "w-3") if cluster.processes[w].poll() is None]

        wait_for(lambda: len(alive()) == 1, "two workers to be dead")
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=chat(script(tokens=["on"])))
        assert answer.headers["x-worker-id"] in alive()


@pytest.mark.parametrize("stream", [False, True])
def test_a_poison_request_for_several_answers_takes_two_workers_too(stream: bool):
    names = ("w-1", "w-2", "w-3", "w-4")
    with running(config_text("".join(map(fake_worker, names))), *names) as cluster:
        body = chat(script(tokens=["x"], exit_at=0), n=12, stream=stream)
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "false")
        assert answer.json()["error"]["code"] == "poison_request"
        body = chat(script(tokens=["on"]), n=12)
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["on"] * 12
        assert sum(process.poll() is not None for process in cluster.processes.values()) == 2
        cluster.wait_idle()


def test_workers_register_by_themselves_with_a_new_gateway():
    config = config_text(fake_worker("w-1") + fake_worker("w-2"))
    with running(config, "w-1", "w-2") as cluster:
        cluster.signal("gw-1", signal.SIGKILL)
        cluster.wait_exit("gw-1")
        cluster.home.http_url("gw-1").unlink()
        cluster.start("gateway", "gw-1")
        cluster.wait_ready("w-1", "w-2")
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=chat(script(tokens=["hi"])))
        assert answer.json()["choices"][0]["message"]["content"] == "hi"
        cluster.wait_idle()


def test_a_killed_gateways_requests_end_in_the_workers():
    config = config_text(fake_worker("w-1"), gateways=("gw-1", "gw-2"), extra="[heartbeat]\nlost_s = 2.0\n")

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url("gw-1"), timeout=PATIENCE_S) as client:
            endless = script(tokens=["a"], repeat=100_000, delay_ms=20)
            doomed = asyncio.create_task(stream_chat(client, chat(endless)))
            await _until(lambda: cluster.worker("w-1", "gw-2")["running"] == 1, "the request to run")
            cluster.signal("gw-1", signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                await doomed
        await _until(lambda: cluster.worker("w-1", "gw-2")["running"] == 0, "the slot to be free")

    with running(config, "w-1", gateways=("gw-1", "gw-2")) as cluster:
        asyncio.run(scenario(cluster))


@pytest.mark.parametrize("victim", ["w-1", "gw-1"])
def test_sigterm_during_a_stream_lets_it_finish_and_exits_0(victim: str):
    config = config_text(fake_worker("w-1"))

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            stream = asyncio.create_task(stream_chat(client, chat(SLOW)))
            await _until(lambda: _running(cluster, "w-1"), "the stream to run")
            cluster.signal(victim, signal.SIGTERM)
            events = await stream
            assert text_of(events) == "a" * 100
            assert events[-1] == "[DONE]"

    with running(config, "w-1") as cluster:
        asyncio.run(scenario(cluster))
        assert cluster.wait_exit(victim) == 0
        assert "Traceback" not in cluster.log(victim)
        assert not list(cluster.home.run.glob(f"{victim}*"))


def test_a_draining_worker_takes_nothing_new():
    config = config_text(fake_worker("w-1") + fake_worker("w-2"))

    async def scenario(cluster: Cluster) -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            streams = [asyncio.create_task(stream_chat(client, chat(SLOW))) for _ in range(2)]
            await _until(lambda: _running(cluster, "w-1") + _running(cluster, "w-2") == 2, "both to run")
            cluster.signal("w-1", signal.SIGTERM)
            for _ in range(10):
                answer = await client.post("/v1/chat/completions", json=chat(script(tokens=["n"])))
                assert answer.status_code == 200, answer.text
            assert [text_of(events) for events in await asyncio.gather(*streams)] == ["a" * 100] * 2

    with running(config, "w-1", "w-2") as cluster:
        asyncio.run(scenario(cluster))
        assert cluster.wait_exit("w-1") == 0


def test_sigterm_while_loading_ends_within_one_piece_and_leaves_nothing():
    config = config_text(fake_worker("w-1", engine_options={"load_s": 600.0}))
    with running(config) as cluster:
        cluster.start("worker", "w-1")
        wait_for(lambda: cluster.worker("w-1").get("state") == "loading", "the worker to load")
        cluster.signal("w-1", signal.SIGTERM)
        assert cluster.wait_exit("w-1") == 0
        wait_for(lambda: cluster.worker("w-1").get("state") in (None, "stopped"), "the gateway to notice")
        assert not [p for p in cluster.home.run.iterdir() if p.name.startswith("w-1")]


def test_a_second_worker_of_the_same_id_is_refused():
    config = config_text(fake_worker("w-1"))
    with running(config, "w-1") as cluster:
        first = cluster.processes["w-1"]
        second = cluster.start("worker", "w-1")
        try:
            assert second.wait(timeout=PATIENCE_S) == 78
            assert first.poll() is None
            answer = httpx.post(cluster.url() + "/v1/chat/completions", json=chat(script(tokens=["one"])))
            assert answer.json()["choices"][0]["message"]["content"] == "one"
        finally:
            cluster.processes["w-1"] = first
