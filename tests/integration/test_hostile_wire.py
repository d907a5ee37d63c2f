"""Peers that send garbage, lie, stop and come back; engines that do anything. Real processes on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import zmq

from protocol.addresses import endpoint
from protocol.logs import LIKE_LINES_A_MINUTE
from protocol.messages import Drain, Generate, Goodbye, Started, WhoAreYou
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    sse,
    stream_chat,
    text_of,
    wait_for,
)
from tests.integration.scripted_gateway import ScriptedGateway
from tests.integration.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
QUICK = "heartbeat.interval_s = 0.2\nheartbeat.suspect_s = 0.6\nheartbeat.lost_s = 1.2\n"
SLOW = script(tokens=["a"], repeat=60, delay_ms=50)
WRONG: tuple[object, ...] = (None, [[]], -1.5)
HELLO: dict[str, Any] = {
    "type": "Hello",
    "protocol": (1, 0),
    "worker_id": "x",
    "incarnation": "1",
    "node": "local",
    "pid": 1,
    "card": {"name": "fake-model", "engine": "fake"},
    "capacity": {"max_num_seqs": 2},
    "state": "ready",
}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def ask(cluster: Cluster, content: str, **fields: Any) -> httpx.Response:
    url = cluster.url() + "/v1/chat/completions"
    return httpx.post(url, json=chat(content, **fields), timeout=PATIENCE_S)


def stream(cluster: Cluster, content: str, **fields: Any) -> list[Any]:
    """All events of a streamed answer."""

    async def read() -> list[Any]:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            return await stream_chat(client, chat(content, **fields))

    return asyncio.run(read())


@contextmanager
def peer(cluster: Cluster) -> Iterator[zmq.Socket[bytes]]:
    """A bare socket to the gateway."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(endpoint("ipc", "gw-1", cluster.home))
    try:
        yield dealer
    finally:
        context.destroy(linger=0)


def answers_to(dealer: zmq.Socket[bytes], kind: str) -> list[dict[str, Any]]:
    """What the gateway said of that kind, waiting for the first."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while dealer.poll(0) or not found:
        assert time.monotonic() < deadline, f"no {kind} came"
        if dealer.poll(100):
            message = msgspec.msgpack.decode(dealer.recv_multipart()[0])
            found += [message] if message["type"] == kind else []
    return found


def running_at(cluster: Cluster, worker_id: str) -> int:
    return int(cluster.worker(worker_id).get("running", 0))


def garbage() -> list[bytes]:
    """Frames that are no message: noise, nothing, nesting without end, every field missing or wrong."""
    frames = [b"", b"\xc1", b"\x91" * 100_000, b"\x81\xa4type" + b"\x91" * 100_000, b"\x82\xa4type\xa5Hello"]
    frames += [os.urandom(30) for _ in range(2000)]
    for key in HELLO:
        frames += [msgspec.msgpack.encode(HELLO | {key: wrong}) for wrong in WRONG]
        frames.append(msgspec.msgpack.encode({k: v for k, v in HELLO.items() if k != key}))
    return frames


def test_garbage_floods_the_gateway_and_a_stream_goes_on(pool):
    with running(config_text(fake_worker("w-1")), "w-1") as cluster:
        process = psutil.Process(cluster.processes["gw-1"].pid)
        other = pool.submit(stream, cluster, SLOW)
        wait_for(lambda: running_at(cluster, "w-1"), "the stream to run")
        before = process.memory_info().rss
        with peer(cluster) as dealer:
            for frame in garbage():
                dealer.send(frame)
            dealer.send_multipart([b"x"] * 1000)
            dealer.send(msgspec.msgpack.encode({"type": "FromTheFuture", "more": [1, 2]}))
            dealer.send(msgspec.msgpack.encode(HELLO | {"protocol": (9, 0)}))
            assert "9.0" in answers_to(dealer, "Welcome")[0]["refused"]
        with peer(cluster) as dealer:
            dealer.send(b"x" * (65 << 20))
        assert text_of(other.result()) == "a" * 60
        assert [w["id"] for w in cluster.state()["workers"]] == ["w-1"]
        cluster.wait_idle()
        assert process.memory_info().rss - before < 64 << 20
        log = cluster.log("gw-1")
        assert "Traceback" not in log
        assert len(log.splitlines()) < 40 + LIKE_LINES_A_MINUTE


def test_ten_thousand_new_ids_on_one_connection_are_one_worker():
    with running(config_text(fake_worker("w-1")), "w-1") as cluster:
        with peer(cluster) as dealer:
            dealer.send(msgspec.msgpack.encode(HELLO | {"state": "loading"}))
            for number in range(10_000):
                dealer.send(msgspec.msgpack.encode(HELLO | {"worker_id": f"x{number}"}))
                while dealer.poll(0):
                    dealer.recv_multipart()
            assert ask(cluster, "hello", max_tokens=1).status_code == 200
            assert {w["id"] for w in cluster.state()["workers"]} == {"w-1", "x"}
        wait_for(lambda: cluster.worker("x")["state"] == "stopped", "the peer to be missed")
        assert len(cluster.log("gw-1").splitlines()) < 40


@pytest.mark.parametrize(
    "lie",
    [
        {"capacity": {"max_num_seqs": 0, "max_waiting": 3}},
        {"capacity": {"max_num_seqs": -2}},
        {"worker_id": "x\r\nx-evil: 1"},
        {"card": {"name": "fake-model\r\nx-evil: 1", "engine": "fake"}},
    ],
    ids=["no slots", "fewer than none", "header in the id", "header in the model"],
)
def test_a_hello_that_would_break_every_choice_is_no_hello(lie):
    with running(config_text(fake_worker("w-1")), "w-1") as cluster, peer(cluster) as dealer:
        dealer.send(msgspec.msgpack.encode(HELLO | lie))
        dealer.send(msgspec.msgpack.encode({"type": "Heartbeat", "state": "ready"}))
        assert answers_to(dealer, "WhoAreYou")
        answer = ask(cluster, "hello", max_tokens=1)
        assert (answer.status_code, answer.headers["x-worker-id"]) == (200, "w-1")
        assert "Traceback" not in cluster.log("gw-1")


@contextmanager
def liar(cluster: Cluster, worker_id: str, **hello: Any) -> Iterator[ScriptedWorker]:
    with closing(ScriptedWorker(endpoint("ipc", "gw-1", cluster.home), worker_id, **hello)) as worker:
        worker.hello()
        yield worker


def streamed(pool: ThreadPoolExecutor, cluster: Cluster) -> Future[list[Any]]:
    return pool.submit(stream, cluster, "hello", model="m")


def test_what_cannot_be_read_of_a_stream_ends_it_and_its_sender_comes_back(pool):
    with running(config_text("")) as cluster, liar(cluster, "w-1") as worker:
        answer = pool.submit(ask, cluster, "hello", model="m")
        request = worker.wait(Generate)
        worker.start(request)
        worker.say(request, "half")
        worker.finish(request, completion_tokens=-1)
        assert answer.result().status_code == 502
        assert answer.result().json()["error"]["code"] == "worker_lost"
        worker.heartbeat()
        worker.wait(WhoAreYou)
        worker.hello()
        again = streamed(pool, cluster)
        worker.serve("fine")
        assert text_of(again.result()) == "fine"
        assert "Traceback" not in cluster.log("gw-1")


def test_words_about_others_requests_and_after_the_end_change_nothing(pool):
    with running(config_text("")) as cluster, liar(cluster, "w-1") as worker:
        answer = streamed(pool, cluster)
        request = worker.wait(Generate)
        with liar(cluster, "w-2") as thief:
            worker.start(request)
            thief.say(request, "stolen")
            thief.finish(request)
            thief.fail(request, "engine_failed")
            thief.reject(request)
            thief.settle()
            worker.say(msgspec.structs.replace(request, attempt=7), "of another attempt")
            worker.say(msgspec.structs.replace(request, request_id="nobodys"), "of no request")
            worker.say(request, "mine")
            for _ in range(3):
                worker.finish(request)
            worker.say(request, "late")
            assert text_of(answer.result()) == "mine"
            assert cluster.state()["gateways"][0]["streams"] == 0


def test_a_stopped_worker_that_goes_on_has_no_request_left_over():
    endless = chat(script(tokens=["a"], repeat=100_000, delay_ms=20), stream=True)
    alone = QUICK + "[takeover]\nenabled = false\n"
    with running(config_text(fake_worker("w-1"), extra=alone), "w-1") as cluster:
        url = cluster.url() + "/v1/chat/completions"
        with httpx.stream("POST", url, json=endless, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            assert any('"content":"a"' in line for line in lines)
            cluster.signal("w-1", signal.SIGSTOP)
            assert sse(list(lines))[-1]["error"]["code"] == "worker_lost"
        cluster.signal("w-1", signal.SIGCONT)
        cluster.wait_ready("w-1")
        cluster.wait_idle(patience_s=5.0)
        assert ask(cluster, "hello", max_tokens=1).status_code == 200


def test_a_request_at_a_stopped_worker_goes_on_elsewhere(pool):
    with running(config_text(fake_worker("w-1") + fake_worker("w-2"), extra=QUICK), "w-1", "w-2") as cluster:
        answer = pool.submit(ask, cluster, script(tokens=["once"], prefill_ms=1500))
        busy = wait_for(lambda: [w for w in ("w-1", "w-2") if running_at(cluster, w)], "a worker to take it")
        cluster.signal(busy[0], signal.SIGSTOP)
        assert answer.result().json()["choices"][0]["message"]["content"] == "once"
        cluster.signal(busy[0], signal.SIGCONT)
        cluster.wait_ready("w-1", "w-2")
        cluster.wait_idle(patience_s=5.0)


def test_a_stopped_gateway_that_goes_on_has_its_workers_again(pool):
    with running(config_text(fake_worker("w-1"), extra=QUICK), "w-1") as cluster:
        answer = pool.submit(stream, cluster, script(tokens=["a"], repeat=500, delay_ms=20))
        wait_for(lambda: running_at(cluster, "w-1"), "the stream to run")
        cluster.signal("gw-1", signal.SIGSTOP)
        wait_for(lambda: "given up" in cluster.log("w-1"), "the worker to give the stream up")
        cluster.signal("gw-1", signal.SIGCONT)
        assert text_of(answer.result()) == "a" * 500
        cluster.wait_ready("w-1")
        cluster.wait_idle()
        assert ask(cluster, "hello", max_tokens=1).status_code == 200


def test_a_worker_whose_loop_was_blocked_comes_back_empty(pool):
    with running(config_text(fake_worker("w-1"), extra=QUICK), "w-1") as cluster:
        answer = pool.submit(ask, cluster, script(tokens=["a"], block_ms=2500, once=True))
        wait_for(lambda: cluster.worker("w-1")["state"] == "stopped", "the worker to be missed")
        assert answer.result().json()["choices"][0]["message"]["content"] == "a"
        cluster.wait_idle()


def test_processes_are_killed_one_after_another_under_load_and_nothing_is_left_over(pool):
    workers = fake_worker("w-1", max_num_seqs=4) + fake_worker("w-2", max_num_seqs=4)
    content = script(tokens=["a"], repeat=30, delay_ms=10)
    with running(config_text(workers), "w-1", "w-2") as cluster:
        descriptors = psutil.Process(cluster.processes["gw-1"].pid).num_fds()
        answers = []
        for number in range(6):
            answers += [pool.submit(stream, cluster, content) for _ in range(3)]
            victim = f"w-{1 + number % 2}"
            wait_for(partial(running_at, cluster, victim), "the victim to have something", 5.0)
            cluster.signal(victim, signal.SIGKILL)
            cluster.wait_exit(victim)
            cluster.start("worker", victim)
            cluster.wait_ready("w-1", "w-2")
        for answer in answers:
            events = answer.result()
            assert (text_of(events), events[-1]) == ("a" * 30, "[DONE]")
        cluster.wait_idle()
        held = psutil.Process(cluster.processes["gw-1"].pid).num_fds
        wait_for(lambda: held() <= descriptors + 4, "descriptors of lost peers to be closed")
        assert "Traceback" not in cluster.log("gw-1")


@contextmanager
def hostile_gateway(**settings: Any) -> Iterator[tuple[ScriptedGateway, Cluster]]:
    """A real worker whose only gateway is the test."""
    with running(config_text(fake_worker("w-1", **settings)), gateways=()) as cluster:
        gateway = ScriptedGateway(cluster.home)
        try:
            cluster.start("worker", "w-1")
            gateway.wait_ready()
            yield gateway, cluster
        finally:
            gateway.close()


def test_garbage_from_a_gateway_floods_a_worker_and_it_serves():
    request: dict[str, Any] = {
        "type": "Generate",
        "attempt": 0,
        "model": "m",
        "sampling": {},
        "seed": 1,
        "messages": [{"role": "user", "content": "hi"}],
    }
    with hostile_gateway() as (gateway, cluster):
        for number, frame in enumerate(garbage()):
            gateway.send_raw([frame])
            if number % 200 == 0:
                gateway.hear()
        for _ in range(200):
            gateway.send_raw([msgspec.msgpack.encode({"type": "Load"})])
            gateway.send_raw([msgspec.msgpack.encode({"type": "FromTheFuture"})])
            gateway.send_raw([msgspec.msgpack.encode({"type": "Embed", "request_id": "e", "inputs": ["x"]})])
            gateway.send_raw(
                [msgspec.msgpack.encode({"type": "Welcome", "gateway_id": "g", "protocol": [1, 0]})]
            )
            gateway.hear()
        gateway.send(Drain(then="explode"))
        for wrong in ({"sampling": {"max_tokens": -5}}, {"time_left_s": float("nan")}, {"seed": -1}):
            gateway.send_raw([msgspec.msgpack.encode(request | {"request_id": "wrong"} | wrong)])
        for _ in range(50):
            gateway.send_raw([msgspec.msgpack.encode(request | {"request_id": "twice"})])
        assert gateway.finished("twice").load.running == 0
        assert gateway.kinds("twice").count("Accepted") == 1
        assert gateway.about("wrong") == []
        log = cluster.log("w-1")
        assert "Traceback" not in log
        assert len(log.splitlines()) < 20 + 3 * LIKE_LINES_A_MINUTE  # of three kinds


def test_a_drain_does_not_wait_longer_than_it_was_given_for_a_stuck_stream():
    with hostile_gateway() as (gateway, cluster):
        gateway.ask("stuck", script(tokens=["a"], hang_at=0))
        gateway.wait_for(Started, request_id="stuck")
        asked = time.monotonic()
        gateway.send(Drain(then="restart", timeout_s=0.5))
        gateway.send(Drain(then="exit", timeout_s=0.5))
        gateway.wait_for(Goodbye)
        assert cluster.wait_exit("w-1") == 75
        assert time.monotonic() - asked < 8.0
        assert gateway.kinds("stuck")[-1] == "Failed"


def test_two_processes_of_one_id_are_one_worker_the_newer(pool):
    with (
        running(config_text("")) as cluster,
        liar(cluster, "w-1", incarnation="1") as old,
        liar(cluster, "w-1", incarnation="2") as new,
    ):
        assert "newer process" in old.hello().refused
        answer = streamed(pool, cluster)
        new.serve("newer")
        assert text_of(answer.result()) == "newer"
        assert not old.has(Generate)


@pytest.fixture
def foreign() -> Iterator[Cluster]:
    worker = (
        '[[workers]]\nid = "w-1"\nmodel = "m"\nmax_num_seqs = 4\ndrain_timeout_s = 0.5\n'
        'engine = "tests.integration.foreign_engines:Hostile"\nengine_options.pause_s = 0.2\n'
    )
    with running(config_text(worker)) as cluster:
        cluster.start("worker", "w-1", PYTHONPATH=str(REPOSITORY))
        cluster.wait_ready("w-1")
        yield cluster


def test_an_engine_may_do_anything_and_only_its_own_request_fails(foreign: Cluster, pool):
    other = pool.submit(stream, foreign, "five words", model="m")
    wait_for(lambda: running_at(foreign, "w-1"), "the neighbour to run")
    for prompt in (
        *("not an item", "tokens that are none", "text that is none"),
        *("cancelled", "exit", "exit at the call", "nothing at all"),
    ):
        answer = ask(foreign, prompt, model="m")
        assert (prompt, answer.status_code) == (prompt, 500)
        assert answer.json()["error"]["code"] == "internal_error"
    assert text_of(other.result()) == "one two three four five"
    foreign.wait_idle()
    assert "Traceback" not in foreign.log("w-1")


def test_a_request_that_hears_no_cancellation_does_not_keep_the_process(foreign: Cluster):
    url = foreign.url() + "/v1/chat/completions"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=chat("deaf", model="m"), timeout=1.0)
    wait_for(lambda: running_at(foreign, "w-1"), "the request to be held all the same")
    foreign.signal("w-1", signal.SIGTERM)
    assert foreign.wait_exit("w-1", patience_s=10.0) == 0
    assert not foreign.home.lock("w-1").exists()
