"""FC-77: what is refused before the first token is a status, in every dialect, streamed or not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest

from gateway.failures import shape_of, status_of
from gateway.middleware import plain_path
from protocol.addresses import endpoint
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Generate
from tests.conformance import spoken
from tests.integration.cluster import PATIENCE_S, Cluster, config_text, running
from tests.integration.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration

Fails = Callable[[ScriptedWorker, Future[httpx.Response]], None]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Cluster]:
    extra = "queue.max_requests = 0"
    with running(config_text("", extra=extra)) as found:
        yield found


@pytest.fixture
def worker(gateway: Cluster) -> Iterator[ScriptedWorker]:
    with closing(ScriptedWorker(endpoint("ipc", "gw-1", gateway.home), "w-1")) as found:
        assert found.hello().refused == ""
        yield found


def failing(code: str, message: str = "the words of the worker", *, times: int = 1) -> Fails:
    """The worker says so of so many attempts."""

    def fail(worker: ScriptedWorker, answer: Future[httpx.Response]) -> None:
        for _ in range(times):
            request = worker.wait(Generate)
            worker.accept(request)
            worker.fail(request, code, message)

    return fail


def full(worker: ScriptedWorker, answer: Future[httpx.Response]) -> None:
    """And nobody may wait."""
    worker.reject(worker.wait(Generate), running=2)


BEFORE: dict[str, tuple[Fails, ErrorCode]] = {
    "too long": (failing("context_length_exceeded"), ErrorCode.CONTEXT_LENGTH_EXCEEDED),
    "the template raises": (failing("invalid_request"), ErrorCode.INVALID_REQUEST),
    "cannot be done": (failing("unsupported"), ErrorCode.UNSUPPORTED),
    "the engine fails twice": (failing("engine_failed", times=2), ErrorCode.ENGINE_FAILED),
    "all are busy": (full, ErrorCode.OVERLOADED),
}


def asked(gateway: Cluster, pool: ThreadPoolExecutor, path: str, *, stream: bool) -> Future[httpx.Response]:
    body = spoken.body(path, "hi", model="m", stream=stream)
    return pool.submit(httpx.post, gateway.url() + path, json=body, timeout=PATIENCE_S)


def told(path: str, error: Any) -> Any:
    """What the error's body or event says that both have in common."""
    if path == spoken.OLLAMA:
        return error["error"]
    found = error["response"]["error"] if "response" in error else error["error"]
    return {"type": found["type"]} if path == spoken.MESSAGES else {"code": found["code"]}


@pytest.mark.parametrize("case", BEFORE)
@pytest.mark.parametrize("path", spoken.ALL)
def test_fc_77_a_refusal_before_the_first_token_is_a_status(
    gateway: Cluster, worker: ScriptedWorker, path: str, case: str
):
    fail, code = BEFORE[case]
    expected = status_of(ClusterError(code, ""), shape_of(plain_path(path)))
    bodies = []
    with ThreadPoolExecutor(1) as pool:
        for stream in (False, True):
            answer = asked(gateway, pool, path, stream=stream)
            fail(worker, answer)
            found = answer.result()
            assert (found.status_code, found.headers["content-type"]) == (expected, "application/json")
            assert ("retry-after" in found.headers) == (expected in (429, 503, 529))
            bodies.append(told(path, found.json()))
            worker.heartbeat()
    assert bodies[0] == bodies[1]


def read(gateway: Cluster, path: str, began: threading.Event) -> str:
    """A whole stream; `began` when its status came."""
    body = spoken.body(path, "hi", model="m", stream=True)
    with httpx.stream("POST", gateway.url() + path, json=body, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200
        began.set()
        return "".join(answer.iter_text())


@pytest.mark.parametrize("code", ["engine_failed", "deadline_exceeded", "invalid_request"])
@pytest.mark.parametrize("path", spoken.ALL)
def test_fc_77_headers_come_at_once_and_a_later_failure_says_the_same_in_the_stream(
    gateway: Cluster, worker: ScriptedWorker, path: str, code: str
):
    began = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        answer = asked(gateway, pool, path, stream=False)
        request = worker.wait(Generate)
        worker.start(request)
        worker.say(request, "a")
        worker.fail(request, code)
        whole = answer.result()
        streamed = pool.submit(read, gateway, path, began)
        request = worker.wait(Generate)
        worker.start(request)
        assert began.wait(PATIENCE_S)  # before there is any token
        worker.say(request, "a")
        worker.fail(request, code)
        text = streamed.result()
    assert whole.status_code == status_of(ClusterError(ErrorCode(code), ""), shape_of(plain_path(path)))
    assert told(path, spoken.events(path, text)[-1]) == told(path, whole.json())
    for end in ("[DONE]", "message_stop", "response.completed", '"finish_reason":"stop"', '"done":true'):
        assert end not in text
