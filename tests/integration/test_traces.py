"""One trace of each request through gateway and worker, in a real collector; and without one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

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
    sse,
    text_of,
    wait_for,
)
from tests.otlp import Collector, Seen, collecting

pytestmark = pytest.mark.integration

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
WORKERS = fake_worker("w-1") + fake_worker("w-2")


def config(endpoint: str, ratio: float = 1.0) -> str:
    return config_text(WORKERS, extra=f'[traces]\nendpoint = "{endpoint}"\nratio = {ratio}\n')


@pytest.fixture
def traced() -> Iterator[tuple[Cluster, Collector]]:
    with collecting() as (endpoint, collector), running(config(endpoint), "w-1", "w-2") as cluster:
        yield cluster, collector


def whole(collector: Collector, count: int) -> list[Seen]:
    """The spans of the trace, once there are so many; each process sends its own."""
    return list(
        wait_for(lambda: (s := collector.trace(TRACE)) and len(s) >= count and s, f"{count} spans to arrive")
    )


def told(spans: list[Seen]) -> list[tuple[str, str, str]]:
    return [(span.process, span.name, span.error) for span in spans]


def test_a_trace_goes_on_from_the_clients_through_gateway_and_worker(traced: tuple[Cluster, Collector]):
    cluster, collector = traced
    body = chat(script(tokens=["a", "b"], prefill_ms=50, delay_ms=20))
    answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, headers=PARENT, timeout=PATIENCE_S)
    worker = answer.headers["x-worker-id"]
    spans = whole(collector, 7)
    (first,) = [span for span in spans if span.parent_id == CLIENT]
    (attempt,) = [span for span in spans if span.name == "attempt"]
    assert {(s.service, s.process, s.name, s.parent_id) for s in spans} == {
        ("studiofleet-gateway", "gw-1", "chat fake-model", CLIENT),
        *(("studiofleet-gateway", "gw-1", name, first.span_id) for name in ("parse", "queue", "attempt")),
        *(("studiofleet-worker", worker, name, attempt.span_id) for name in ("queue", "prefill", "decode")),
    }
    by_name = {(span.process, span.name): span for span in spans}
    decode, prefill = by_name[worker, "decode"], by_name[worker, "prefill"]
    assert attempt.began_ns <= prefill.began_ns <= prefill.ended_ns <= decode.ended_ns <= attempt.ended_ns
    assert prefill.ended_ns - prefill.began_ns >= 40_000_000
    usage = answer.json()["usage"]
    assert first.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert first.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert decode.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    wait_for(lambda: f"trace {TRACE}" in cluster.log("gw-1"), "the access line, which names the trace")


def test_a_stream_whose_worker_is_killed_shows_both_attempts_under_one_trace(
    traced: tuple[Cluster, Collector],
):
    cluster, collector = traced
    body = chat(script(tokens=["a"], repeat=60, delay_ms=20), stream=True)
    url = cluster.url() + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, headers=PARENT, timeout=PATIENCE_S) as answer:
        killed = answer.headers["x-worker-id"]
        lines = answer.iter_lines()
        came = [next(line for line in lines if '"content":"a' in line)]  # or more of them, joined
        cluster.signal(killed, signal.SIGKILL)
        came += lines
    assert text_of(sse(came)) == "a" * 60
    (other,) = {"w-1", "w-2"} - {killed}
    spans = whole(collector, 9)
    (first,) = [span for span in spans if span.parent_id == CLIENT]
    attempts = [span for span in spans if span.name == "attempt"]
    assert [(a.attributes["studiofleet.worker"], a.error, a.parent_id) for a in attempts] == [
        (killed, "worker_lost", first.span_id),
        (other, "", first.span_id),
    ]
    assert first.error == ""
    tokens = [attempt.attributes["gen_ai.usage.output_tokens"] for attempt in attempts]
    assert 0 < tokens[0] < tokens[1] == first.attributes["gen_ai.usage.output_tokens"]
    beneath = {span.name for span in spans if span.parent_id == attempts[1].span_id}
    assert beneath == {"queue", "prefill", "decode"}
    assert not [span for span in spans if span.process == killed]  # it did not live to tell


def test_vectors_have_traces_too():
    embedder = fake_worker("e-1", model="embedder", engine_options={"task": "embed"})
    with collecting() as (endpoint, collector):
        settings = f'[traces]\nendpoint = "{endpoint}"\n'
        with running(config_text(embedder, extra=settings), "e-1") as cluster:
            asked = {"model": "embedder", "input": ["a", "b"]}
            url = cluster.url() + "/v1/embeddings"
            answer = httpx.post(url, json=asked, headers=PARENT, timeout=PATIENCE_S)
            assert answer.status_code == 200
            spans = whole(collector, 6)
    assert ("gw-1", "embeddings embedder", "") in told(spans)
    (attempt,) = [span for span in spans if span.name == "attempt"]
    (first,) = [span for span in spans if span.parent_id == CLIENT]
    assert attempt.parent_id == first.span_id
    assert {span.process for span in spans if span.parent_id == attempt.span_id} == {"e-1"}
    assert first.attributes["gen_ai.operation.name"] == "embeddings"
    assert first.attributes["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]


def test_refused_and_left_requests_have_traces_and_the_rest_of_a_process_is_sent_at_its_end(
    traced: tuple[Cluster, Collector],
):
    cluster, collector = traced
    url = cluster.url() + "/v1/chat/completions"
    wrong = httpx.post(url, json={"model": "none", "messages": "?"}, headers=PARENT, timeout=PATIENCE_S)
    assert wrong.status_code == 400
    endless = chat(script(tokens=["a"], repeat=100_000, delay_ms=20), stream=True)
    with httpx.stream("POST", url, json=endless, headers=PARENT, timeout=PATIENCE_S) as answer:
        worker = answer.headers["x-worker-id"]
        next(line for line in answer.iter_lines() if '"content":"a"' in line)
    cluster.wait_idle()
    for process in ("gw-1", "w-1", "w-2"):
        cluster.signal(process, signal.SIGTERM)
        cluster.wait_exit(process)
    spans = told(collector.trace(TRACE))
    assert ("gw-1", "chat", "invalid_request") in spans
    assert ("gw-1", "chat fake-model", "client_closed_request") in spans
    assert ("gw-1", "attempt", "client_closed_request") in spans
    assert (worker, "decode", "aborted") in spans


def test_without_its_collector_a_cluster_serves_says_so_once_and_ends_in_time():
    with collecting() as (endpoint, _collector):
        pass  # nothing listens there any more
    with running(config(endpoint), "w-1", "w-2") as cluster:
        url = cluster.url() + "/v1/chat/completions"
        for _ in range(30):
            assert httpx.post(url, json=chat("hi"), timeout=PATIENCE_S).status_code == 200
        words = f"traces cannot be sent to {endpoint}"
        wait_for(lambda: words in cluster.log("gw-1"), "the gateway to say so")
        began = time.monotonic()
        for process in cluster.processes:
            cluster.signal(process, signal.SIGTERM)
        assert [cluster.wait_exit(process) for process in cluster.processes] == [0, 0, 0]
        assert time.monotonic() - began < 30
        assert cluster.log("gw-1").count("traces cannot be sent") == 1
        assert "Traceback" not in cluster.log("gw-1") + cluster.log("w-1") + cluster.log("w-2")


def test_who_is_not_sampled_has_no_trace_and_who_says_so_is():
    with collecting() as (endpoint, collector), running(config(endpoint, 0.0), "w-1", "w-2") as cluster:
        url = cluster.url() + "/v1/chat/completions"
        unsampled = {"traceparent": PARENT["traceparent"][:-2] + "00"}
        for headers in ({}, unsampled, {"traceparent": "nonsense"}, PARENT):
            answer = httpx.post(url, json=chat("hi"), headers=headers, timeout=PATIENCE_S)
            assert answer.status_code == 200
        whole(collector, 7)
        assert len([span for span in collector.spans if span.name.startswith("chat")]) == 1
