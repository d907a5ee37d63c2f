"""A real gateway process between real HTTP clients and workers whose every word the test says."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from protocol.addresses import endpoint
from protocol.messages import Abort, Generate, WhoAreYou
from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, running, sse, text_of, wait_for
from tests.integration.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration


@contextmanager
def gateway(extra: str = "", workers: str = "") -> Iterator[Cluster]:
    with running(config_text(workers, extra=extra)) as cluster:
        cluster.url()
        yield cluster


@contextmanager
def worker(cluster: Cluster, worker_id: str = "w-1", **fields) -> Iterator[ScriptedWorker]:
    with closing(ScriptedWorker(endpoint("ipc", "gw-1", cluster.home), worker_id, **fields)) as peer:
        assert peer.hello().refused == ""
        yield peer


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def ask(pool: ThreadPoolExecutor, cluster: Cluster, **fields) -> Future[httpx.Response]:
    url = cluster.url() + "/v1/chat/completions"
    headers = fields.pop("headers", {})
    body = chat("hi", model=fields.pop("model", "m"), **fields)
    return pool.submit(httpx.post, url, json=body, headers=headers, timeout=PATIENCE_S)


def gateway_counts(cluster: Cluster) -> tuple[int, int]:
    state = cluster.state()["gateways"][0]
    return state["streams"], state["queued"]


def test_a_whole_answer_and_its_headers(pool):
    with gateway() as cluster, worker(cluster) as peer:
        answer = ask(pool, cluster, headers={"x-request-id": "my-id", "session-id": "my-session"})
        request = peer.serve("Hel", "lo")
        found = answer.result()
        assert found.status_code == 200
        assert found.json()["choices"][0] == {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
        assert found.json()["usage"]["total_tokens"] == 5
        assert found.headers["x-worker-id"] == "w-1"
        assert found.headers["x-request-id"] == found.headers["request-id"] == "my-id"
        assert request.request_id.startswith("my-id.")
        assert request.cache_key == "my-session"
        assert 0 <= request.seed < 2**63
        assert gateway_counts(cluster) == (0, 0)


def test_a_stream_is_a_sequence_of_data_lines(pool):
    with gateway() as cluster, worker(cluster) as peer:
        answer = ask(pool, cluster, stream=True, stream_options={"include_usage": True})
        peer.serve("a", "b\n", "ü")
        text = answer.result().text
        blocks = text.split("\n\n")
        assert blocks.pop() == ""
        assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
        events = sse(text.split("\n"))
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert text_of(events) == "ab\nü"
        assert all(event["usage"] is None for event in events[:-2])
        assert events[-3]["choices"][0]["finish_reason"] == "stop"
        assert (events[-2]["choices"], events[-2]["usage"]["completion_tokens"]) == ([], 3)
        assert events[-1] == "[DONE]"


def test_the_official_client_in_strict_mode(pool):
    with gateway() as cluster, worker(cluster, card={"aliases": ("default",)}) as peer:
        url = cluster.url() + "/v1"
        with openai.OpenAI(
            base_url=url, api_key="x", _strict_response_validation=True, max_retries=0
        ) as client:
            assert [model.id for model in client.models.list()] == ["m"]
            assert client.models.retrieve("m").id == "m"
            messages: Any = [{"role": "user", "content": "hi"}]
            whole = pool.submit(client.chat.completions.create, model="default", messages=messages)
            peer.serve("x", "y")
            assert whole.result().choices[0].message.content == "xy"
            assert whole.result().model == "default"
            streamed = pool.submit(
                lambda: list(client.chat.completions.create(model="m", messages=messages, stream=True))
            )
            peer.serve("x", "y")
            assert "".join(c.choices[0].delta.content or "" for c in streamed.result()) == "xy"


def test_busy_goes_to_the_other_worker_and_is_counted(pool):
    with gateway() as cluster, worker(cluster) as one, worker(cluster, "w-2") as two:
        two.heartbeat(running=1)  # so that the first seems cheaper
        wait_for(lambda: cluster.worker("w-2")["running"] == 1, "the load to be known")
        answer = ask(pool, cluster)
        one.reject(one.wait(Generate), running=2)
        two.serve("z")
        assert answer.result().headers["x-worker-id"] == "w-2"
        assert cluster.worker("w-1")["rejected"] == 1
        assert cluster.worker("w-2")["rejected"] == 0


def test_a_full_queue_refuses_at_once_and_a_finish_wakes_the_head(pool):
    with gateway("[queue]\nmax_requests = 1\n") as cluster, worker(cluster, slots=1) as peer:
        first = ask(pool, cluster)
        running_one = peer.wait(Generate)
        peer.start(running_one)
        second = ask(pool, cluster)
        wait_for(lambda: gateway_counts(cluster) == (1, 1), "one running and one queued")
        third = ask(pool, cluster).result()
        assert third.status_code == 429
        assert third.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(third.headers["retry-after"]) >= 1
        peer.say(running_one, "one")
        peer.finish(running_one)
        peer.serve("two")
        contents = [a.result().json()["choices"][0]["message"]["content"] for a in (first, second)]
        assert contents == ["one", "two"]


def test_a_worker_lost_before_the_first_token_is_replaced(pool):
    with gateway() as cluster, worker(cluster, "w-2") as other:
        other.heartbeat(running=1)
        wait_for(lambda: cluster.worker("w-2")["running"] == 1, "the load to be known")
        with worker(cluster) as doomed:
            answer = ask(pool, cluster)
            doomed.start(doomed.wait(Generate))
            wait_for(lambda: cluster.worker("w-1")["running"] == 1, "it to be accepted")
        assert other.serve("saved").attempt == 1
        assert answer.result().json()["choices"][0]["message"]["content"] == "saved"
        assert cluster.worker("w-1")["state"] == "stopped"


def test_a_worker_lost_in_mid_stream_ends_it_with_an_error_event(pool):
    with gateway() as cluster:
        with worker(cluster) as doomed:
            answer = ask(pool, cluster, stream=True)
            request = doomed.wait(Generate)
            doomed.start(request)
            doomed.say(request, "a")
            doomed.settle()
            doomed.heartbeat(running=1, kv_tokens=7)  # once this is known, so is all that was said before
            wait_for(lambda: cluster.worker("w-1")["kv_tokens"] == 7, "the delta to have arrived")
        events = sse(answer.result().text.split("\n"))
        assert text_of(events) == "a"
        assert events[-1]["error"]["code"] == "worker_lost"
        assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
        cluster.wait_idle()


def test_after_a_long_wait_in_the_queue_an_error_is_an_event(pool):
    with gateway("[limits]\nkeepalive_s = 0.2\n") as cluster, worker(cluster, slots=1) as peer:
        peer.heartbeat(running=1)
        wait_for(lambda: cluster.worker("w-1")["running"] == 1, "the worker to be full")
        url = cluster.url() + "/v1/chat/completions"
        with httpx.stream("POST", url, json=chat("hi", model="m", stream=True), timeout=PATIENCE_S) as answer:
            assert answer.status_code == 200
            assert "x-worker-id" not in answer.headers
            peer.heartbeat("failed")
            text = answer.read().decode()
        assert text.startswith(": keepalive\n")
        assert sse(text.split("\n"))[-1]["error"]["code"] == "no_worker_available"


def test_keepalives_flow_while_a_prefill_lasts(pool):
    with gateway("[limits]\nkeepalive_s = 0.1\n") as cluster, worker(cluster) as peer:
        url = cluster.url() + "/v1/chat/completions"
        with httpx.stream("POST", url, json=chat("hi", model="m", stream=True), timeout=PATIENCE_S) as answer:
            assert "x-worker-id" not in answer.headers  # nobody has started it yet
            raw = answer.iter_raw()
            assert next(raw) == b": keepalive\n"
            request = peer.wait(Generate)
            peer.start(request)
            peer.say(request, "a")
            peer.finish(request)
            assert b"".join(raw).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("phase", ["queued", "sent", "started", "talking"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_everything(phase: str, stream: bool):
    with gateway() as cluster, worker(cluster, slots=1) as peer:
        if phase == "queued":
            peer.heartbeat(running=1)
            wait_for(lambda: cluster.worker("w-1")["running"] == 1, "the worker to be full")
        host, _, port = cluster.url().removeprefix("http://").partition(":")
        body = json.dumps(chat("hi", model="m", stream=stream)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.sendall(head.encode() + body)
            if phase == "queued":
                wait_for(lambda: gateway_counts(cluster) == (0, 1), "it to be queued")
            else:
                request = peer.wait(Generate)
                if phase != "sent":
                    peer.start(request)
                    wait_for(lambda: cluster.worker("w-1")["running"] == 1, "it to be accepted")
                if phase == "talking":
                    peer.say(request, "a", "b")
        if phase != "queued":
            peer.wait(Abort, lambda abort: abort.request_id == request.request_id)
        wait_for(lambda: gateway_counts(cluster) == (0, 0), "the counters to be zero")


def test_a_failure_of_the_engine_is_tried_once_more(pool):
    with gateway() as cluster, worker(cluster) as peer:
        answer = ask(pool, cluster)
        peer.fail(peer.wait(Generate), "engine_failed")
        peer.fail(peer.wait(Generate), "engine_failed", "it broke again")
        assert answer.result().status_code == 500
        assert answer.result().json()["error"]["message"] == "it broke again"


def test_a_prompt_that_is_too_long_is_the_clients_fault(pool):
    with gateway() as cluster, worker(cluster) as peer:
        answer = ask(pool, cluster)
        peer.fail(peer.wait(Generate), "context_length_exceeded", "maximum context length is 5 tokens")
        error = answer.result().json()["error"]
        assert answer.result().status_code == 400
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_no_answer_from_a_worker_that_beats_goes_elsewhere(pool):
    soon = "[routing]\nanswer_timeout_s = 0.5\n"
    with gateway(soon) as cluster, worker(cluster) as mute, worker(cluster, "w-2") as other:
        other.heartbeat(running=1)
        wait_for(lambda: cluster.worker("w-2")["running"] == 1, "the load to be known")
        answer = ask(pool, cluster)
        given_up = mute.wait(Generate)
        request = other.wait(Generate)
        assert mute.wait(Abort).request_id == given_up.request_id == request.request_id
        mute.start(given_up)  # too late: it counts for nothing
        mute.say(given_up, "wrong")
        other.start(request)
        other.say(request, "right")
        other.finish(request)
        assert answer.result().json()["choices"][0]["message"]["content"] == "right"


def test_bytes_that_are_no_message_harm_nobody(pool):
    with gateway() as cluster, worker(cluster) as peer:
        peer.send_bytes(b"\x00\xff nonsense")
        peer.send_bytes(b"")
        peer.send_bytes(b"\x81\xa4type\xa4Nope")
        answer = ask(pool, cluster)
        peer.serve("fine")
        assert answer.result().status_code == 200
        assert "Traceback" not in cluster.log("gw-1")


@contextmanager
def stranger(cluster: Cluster, **fields) -> Iterator[ScriptedWorker]:
    """A peer that has not said anything yet."""
    with closing(ScriptedWorker(endpoint("ipc", "gw-1", cluster.home), "w-1", **fields)) as peer:
        yield peer


def test_an_unknown_peer_is_asked_who_it_is():
    with gateway() as cluster, stranger(cluster) as peer:
        peer.heartbeat()
        assert peer.wait(WhoAreYou).gateway_id == "gw-1"
        assert peer.hello().refused == ""


def test_another_major_is_refused_with_both_numbers():
    with gateway() as cluster, stranger(cluster, protocol=(9, 1)) as peer:
        refused = peer.hello().refused
        assert "9.1" in refused
        assert "1.0" in refused
        assert cluster.worker("w-1") == {}


def test_the_newest_process_of_an_id_holds(pool):
    with (
        gateway() as cluster,
        worker(cluster, incarnation="1") as old,
        worker(cluster, incarnation="2") as new,
    ):
        with stranger(cluster, incarnation="0") as oldest:
            assert "newer" in oldest.hello().refused
        answer = ask(pool, cluster)
        new.serve("new")
        assert answer.result().json()["choices"][0]["message"]["content"] == "new"
        assert not old.has(Generate)


def test_sigterm_finishes_what_runs_and_refuses_what_comes(pool):
    with gateway() as cluster, worker(cluster) as peer:
        url = cluster.url()
        answer = ask(pool, cluster, stream=True)
        request = peer.wait(Generate)
        peer.start(request)
        wait_for(lambda: gateway_counts(cluster) == (1, 0), "it to run")
        cluster.signal("gw-1", signal.SIGTERM)
        wait_for(lambda: httpx.get(url + "/health/ready").status_code == 503, "readiness to be withdrawn")
        late = httpx.post(url + "/v1/chat/completions", json=chat("hi", model="m"))
        assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
        assert int(late.headers["retry-after"]) >= 1
        peer.say(request, "done")
        peer.finish(request)
        assert text_of(sse(answer.result().text.split("\n"))) == "done"
        assert cluster.wait_exit("gw-1") == 0
        assert not cluster.home.http_url("gw-1").exists()


def test_a_second_sigterm_ends_at_once(pool):
    with gateway() as cluster, worker(cluster) as peer:
        answer = ask(pool, cluster, stream=True)
        peer.start(peer.wait(Generate))
        url = cluster.url()
        wait_for(lambda: gateway_counts(cluster) == (1, 0), "it to run")
        cluster.signal("gw-1", signal.SIGTERM)
        wait_for(lambda: httpx.get(url + "/health/ready").status_code == 503, "it to drain")
        cluster.signal("gw-1", signal.SIGTERM)
        cluster.wait_exit("gw-1", 5.0)
        assert isinstance(answer.exception(), httpx.HTTPError)


def test_a_taken_port_is_said_in_words(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = f'version = 1\n[gateway]\nid = "gw-1"\nhttp = "127.0.0.1:{port}"\n'
        cluster = Cluster(tmp_path / "home", config)
        cluster.start("gateway", "gw-1")
        assert cluster.wait_exit("gw-1") == 78
    assert f"127.0.0.1:{port} cannot be bound" in cluster.log("gw-1")
    assert len(cluster.log("gw-1").splitlines()) == 1


def test_paths_have_one_meaning_and_no_redirects():
    with gateway() as cluster, worker(cluster, model="org/m"):
        url = cluster.url()
        for path in (
            "/v1/models",
            "/v1/models/",
            "//v1//models",
            "/models",
            "/v1/models/org/m",
            "/models/org%2Fm",
        ):
            answer = httpx.get(url + path)
            assert answer.status_code == 200, path
        assert httpx.head(url + "/").status_code == 200
        assert httpx.head(url + "/v1/models").content == b""
        preflight = httpx.options(url + "/v1/chat/completions")
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "*"
        wrong = httpx.get(url + "/v1/chat/completions/")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        for answer in (wrong, preflight, httpx.get(url + "/nothing")):
            assert answer.headers["x-request-id"] == answer.headers["request-id"]


def test_health_and_metrics(pool):
    fake = '[[workers]]\nid = "w-1"\nmodel = "m"\nengine = "fake"\n'
    with gateway(workers=fake) as cluster:
        url = cluster.url()
        assert httpx.get(url + "/health").status_code == 200
        assert httpx.get(url + "/health/ready").status_code == 503
        assert cluster.worker("w-1")["state"] == "stopped"
        with worker(cluster) as peer:
            assert httpx.get(url + "/health/ready").status_code == 200
            answer = ask(pool, cluster)
            peer.serve("a", "b")
            answer.result()
            text = httpx.get(url + "/metrics").text
        assert 'vllm:num_requests_running{model_name="m"} 0.0' in text
        assert 'studiofleet_requests_total{code="ok",model="m"} 1.0' in text
        assert 'vllm:generation_tokens_total{model_name="m"} 2.0' in text
        assert 'studiofleet_worker_breaker{state="closed",worker="w-1"} 1.0' in text
        assert 'studiofleet_worker_breaker{state="open",worker="w-1"} 0.0' in text


def test_retries_and_takeovers_are_counted_by_what_ended_the_attempt(pool):
    with gateway() as cluster, worker(cluster, card={"can_resume": True}) as peer:
        answer = ask(pool, cluster)
        peer.fail(peer.wait(Generate), "engine_failed")
        request = peer.wait(Generate)
        peer.start(request)
        peer.say(request, "half ")
        peer.fail(request, "shutting_down")
        peer.serve("done")
        assert answer.result().json()["choices"][0]["message"]["content"] == "half done"
        text = httpx.get(cluster.url() + "/metrics").text
        assert 'studiofleet_retries_total{reason="engine_failed"} 1.0' in text
        assert 'studiofleet_takeovers_total{reason="shutting_down"} 1.0' in text


def test_a_reader_that_stalls_is_cut_off(pool):
    extra = "[limits]\nstream_buffer_bytes = 20000\nstream_stall_s = 30.0\n"
    with gateway(extra) as cluster, worker(cluster) as peer:
        host, _, port = cluster.url().removeprefix("http://").partition(":")
        body = json.dumps(chat("hi", model="m", stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head.encode() + body)
            request = peer.wait(Generate)
            peer.start(request)
            for _ in range(2000):
                peer.say(request, "x" * 10_000)
            peer.wait(Abort)
        wait_for(lambda: gateway_counts(cluster) == (0, 0), "the counters to be zero")
        assert "reads too slowly" in cluster.log("gw-1")


def test_sighup_reads_the_workers_again_and_keeps_the_old_ones_when_it_cannot():
    worker_table = '[[workers]]\nid = "w-9"\nmodel = "late"\nengine = "fake"\n'
    with gateway() as cluster:
        before = cluster.home.config.read_text()
        cluster.home.config.write_text(before + worker_table)
        cluster.signal("gw-1", signal.SIGHUP)
        wait_for(lambda: cluster.worker("w-9"), "the new worker to be known")
        cluster.home.config.write_text("nonsense")
        cluster.signal("gw-1", signal.SIGHUP)
        wait_for(lambda: "the old one holds" in cluster.log("gw-1"), "the refusal")
        assert cluster.worker("w-9")["model"] == "late"
        cluster.home.config.write_text(before)
        cluster.signal("gw-1", signal.SIGHUP)
        wait_for(lambda: not cluster.worker("w-9"), "the worker to be forgotten")
