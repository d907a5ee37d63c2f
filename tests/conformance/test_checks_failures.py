"""Checks 15, 16 and 21: errors as the official clients raise them, repeat them, and survive them."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

from gateway.failures import TABLE, Shape, render
from protocol.errors import ClusterError, ErrorCode
from tests.conformance import spoken
from tests.integration.cluster import Cluster, chat, config_text, fake_worker, running, script, wait_for

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.integration

HI: Any = [{"role": "user", "content": "hi"}]


# --- 15: the whole table, also what no cluster can be brought to say ---


class _Table(BaseHTTPRequestHandler):
    """Answers `/CODE/…` as the gateway renders that failure."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        code = ErrorCode(self.path.split("/")[1])
        shape = Shape.ANTHROPIC if self.path.endswith("/messages") else Shape.OPENAI
        answer = render(ClusterError(code, "what went wrong", param="top_p"), shape, "id-1")
        self.send_response(answer.status)
        for name, value in [*answer.headers, (b"x-request-id", b"id-1"), (b"request-id", b"id-1")]:
            self.send_header(name.decode(), value.decode())
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_what: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def table() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Table)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


CODES = [code for code in TABLE if code is not ErrorCode.CLIENT_CLOSED_REQUEST]
CLASSES = {
    400: "BadRequest",
    401: "Authentication",
    403: "PermissionDenied",
    404: "NotFound",
    429: "RateLimit",
}


def _class(module: Any, status: int) -> Any:
    name = "InternalServer" if status >= 500 else CLASSES.get(status, "APIStatus")
    return getattr(module, f"{name}Error")


@pytest.mark.parametrize("code", CODES)
def test_check_15_each_error_as_openais_client_raises_it(table: str, code: ErrorCode):
    with (
        openai.OpenAI(base_url=f"{table}/{code}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        client.chat.completions.create(model="m", messages=HI)
    error, row = caught.value, TABLE[code]
    assert isinstance(error, _class(openai, row.status))
    assert (error.status_code, error.code, error.type) == (row.status, row.code, row.type)
    assert (error.param, error.request_id) == ("top_p", "id-1")
    assert set(error.response.json()["error"]) == {"message", "type", "param", "code"}
    assert "what went wrong" in str(error)


@pytest.mark.parametrize("code", CODES)
def test_check_15_each_error_as_anthropics_client_raises_it(table: str, code: ErrorCode):
    with (
        anthropic.Anthropic(base_url=f"{table}/{code}", api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        client.messages.create(model="m", max_tokens=1, messages=HI)
    error, row = caught.value, TABLE[code]
    assert isinstance(error, _class(anthropic, row.anthropic or row.status))
    assert (error.status_code, error.request_id) == (row.anthropic or row.status, "id-1")
    assert (error.body["type"], error.body["request_id"]) == ("error", "id-1")
    assert error.body["error"]["message"] == "what went wrong"


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/nowhere", "/v1/chat", "/v1/messages/x", "/index.html", "/%00"]
)
def test_check_15_no_answer_is_html(http: httpx.Client, path: str):
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"):
        answer = http.request(method, path)
        assert "html" not in answer.headers.get("content-type", ""), (method, path)
        if answer.status_code >= 400:
            assert answer.json()["error"]
            assert answer.headers["x-request-id"] == answer.headers["request-id"]


# --- 16: who tries again, and when ---

SHORT_S = 4
RETRIES = f"queue.max_requests = 0\nlimits.request_timeout_s = {SHORT_S}"


@pytest.fixture(scope="module")
def full() -> Iterator[Cluster]:
    workers = fake_worker("w-1", max_num_seqs=1, max_waiting=0, max_model_len=512)
    workers += fake_worker("w-2", served_name="ghost")  # nobody starts it
    with running(config_text(workers, extra=RETRIES), "w-1") as found:
        yield found


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the official clients would have waited between their tries."""
    found: list[float] = []

    class Impatient:
        sleep = staticmethod(found.append)

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

    for module in (openai, anthropic):
        monkeypatch.setattr(module._base_client, "time", Impatient())
    return found


def _seen(cluster: Cluster, code: str) -> int:
    """How many requests ended with that code, as the gateway counts them."""
    text = httpx.get(cluster.url() + "/metrics").text
    series = rf'^studiofleet_requests_total{{code="{code}".*}} (\S+)$'
    return sum(int(float(n)) for n in re.findall(series, text, re.M))


def _attempts(cluster: Cluster, code: str, ask: Callable[[], Any]) -> int:
    before = _seen(cluster, code)
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
        ask()
    return _seen(cluster, code) - before


@contextmanager
def _clients(cluster: Cluster, max_retries: int = 2) -> Iterator[tuple[openai.OpenAI, Any]]:
    """Both official clients, with their own number of tries."""
    with (
        openai.OpenAI(base_url=cluster.url() + "/v1", api_key="none", max_retries=max_retries) as client,
        anthropic.Anthropic(base_url=cluster.url(), api_key="none", max_retries=max_retries) as claude,
    ):
        yield client, claude


@contextmanager
def _ways(cluster: Cluster, model: str, text: str) -> Iterator[list[Callable[[], Any]]]:
    """The same request through both official clients."""
    messages: Any = [{"role": "user", "content": text}]
    with _clients(cluster) as (client, claude):
        yield [
            lambda: client.chat.completions.create(model=model, messages=messages),
            lambda: client.responses.create(model=model, input=text, stream=True),
            lambda: claude.messages.create(model=model, max_tokens=50, messages=messages),
        ]


def test_check_16_what_is_full_is_tried_three_times(full: Cluster, waits: list[float]):
    endless = chat(script(tokens=["a"], repeat=10_000, delay_ms=20), stream=True, max_tokens=10_000)
    with _ways(full, "fake-model", "hi") as ways:
        for ask in ways:
            with httpx.stream("POST", full.url() + spoken.CHAT, json=endless, timeout=30) as occupant:
                pieces = occupant.iter_raw()  # held: one that is collected closes the connection
                next(pieces)
                waits.clear()
                assert _attempts(full, "overloaded", ask) == 3
                assert len(waits) == 2
                assert all(0 < wait <= 60 for wait in waits)
            full.wait_idle()


def test_check_16_retry_after_ms_is_followed_to_the_letter(full: Cluster, waits: list[float]):
    with _ways(full, "ghost", "hi") as ways:
        for ask in ways:
            waits.clear()
            assert _attempts(full, "no_worker_available", ask) == 3
            assert waits == [1.0, 1.0]


def test_check_16_the_clients_own_mistake_is_tried_once(full: Cluster, waits: list[float]):
    with _ways(full, "fake-model", "word " * 999) as ways:
        for ask in ways:
            assert _attempts(full, "context_length_exceeded", ask) == 1
    assert waits == []


def test_check_16_what_took_too_long_is_not_begun_again(full: Cluster, waits: list[float]):
    """504 would be tried again, were it not for `x-should-retry`."""
    with _ways(full, "fake-model", script(tokens=["a"], prefill_ms=60_000)) as ways:
        assert _attempts(full, "deadline_exceeded", ways[0]) == 1
    assert waits == []


def test_check_16_what_workers_die_of_is_not_begun_again(waits: list[float]):
    """Each try would take two workers more."""
    with (
        running(config_text(fake_worker("w-1") + fake_worker("w-2")), "w-1", "w-2") as cluster,
        _ways(cluster, "fake-model", script(tokens=["a"], exit_at=0)) as ways,
    ):
        for ask in ways:
            assert _attempts(cluster, "poison_request", ask) == 1
            for worker_id in ("w-1", "w-2"):
                cluster.wait_exit(worker_id)
                cluster.start("worker", worker_id)
            cluster.wait_ready("w-1", "w-2")
    assert waits == []


# --- 21: workers that die ---


@pytest.fixture(scope="module")
def mortal() -> Iterator[Cluster]:
    workers = [
        fake_worker("w-1", served_name="alone", max_num_seqs=16),
        fake_worker("w-2", served_name="calm"),
    ]
    workers += [fake_worker(name, served_name="pair") for name in ("w-3", "w-4")]
    with running(config_text("".join(workers)), "w-1", "w-2", "w-3", "w-4") as found:
        yield found


def _kill(cluster: Cluster, worker_id: str) -> None:
    cluster.signal(worker_id, signal.SIGKILL)
    cluster.wait_exit(worker_id)


def _busy(cluster: Cluster, *worker_ids: str) -> int:
    return sum(cluster.worker(worker_id).get("running", 0) for worker_id in worker_ids)


def test_check_21_killed_before_the_first_byte_the_answer_comes_from_elsewhere(mortal: Cluster):
    text = script(tokens=["from ", "elsewhere"], prefill_ms=3000)

    def ask(path: str) -> spoken.Said:
        with httpx.Client(base_url=mortal.url(), timeout=30) as http:
            return spoken.ask(http, path, text, model="pair", stream=path != spoken.CHAT)

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, path) for path in spoken.ALL]
        wait_for(lambda: _busy(mortal, "w-3", "w-4") == len(asked), "all to be taken")
        _kill(mortal, "w-3" if _busy(mortal, "w-3") else "w-4")
        assert [future.result().text for future in asked] == ["from elsewhere"] * len(asked)


def test_check_21_killed_before_the_first_byte_with_nobody_else_is_a_status(mortal: Cluster):
    """That of the loss, or of having nobody left to ask."""
    text = script(tokens=["a"], prefill_ms=60_000)

    def ask(path: str) -> httpx.Response:
        return httpx.post(mortal.url() + path, json=spoken.body(path, text, model="alone"), timeout=60)

    with ThreadPoolExecutor() as pool:
        asked = {path: pool.submit(ask, path) for path in spoken.ALL}
        wait_for(lambda: _busy(mortal, "w-1") == len(asked), "all to be taken")
        _kill(mortal, "w-1")
        for path, future in asked.items():
            answer = future.result()
            allowed = (500, 529) if path == spoken.MESSAGES else (502, 503)
            assert answer.status_code in allowed, answer.text
            assert answer.json()["error"]
    mortal.start("worker", "w-1")
    mortal.wait_ready("w-1")


def _raw(cluster: Cluster, path: str, text: str, model: str) -> str:
    """A whole stream, read until the connection is closed or the answer ends."""
    asked = spoken.body(path, text, model=model, max_tokens=10_000, stream=True)
    return httpx.post(cluster.url() + path, json=asked, timeout=60).text


def test_check_21_killed_after_the_first_byte_each_stream_says_so_and_others_go_on(mortal: Cluster):
    endless = script(tokens=["a"], repeat=5_000, delay_ms=20)
    messages: Any = [{"role": "user", "content": endless}]
    asking: dict[str, Any] = {"model": "alone", "stream": True}
    with _clients(mortal, 0) as (client, claude), ThreadPoolExecutor(20) as pool:
        ways: list[Callable[[], Any]] = [
            lambda: list(client.chat.completions.create(messages=messages, **asking)),
            lambda: list(client.completions.create(prompt=endless, max_tokens=5000, **asking)),
            lambda: list(claude.messages.create(max_tokens=5000, messages=messages, **asking)),
            lambda: list(client.responses.create(input=endless, **asking)),
        ]
        calm = script(tokens=["a"], repeat=100, delay_ms=40)
        beside = pool.submit(_raw, mortal, spoken.CHAT, calm, "calm")
        asked = {path: pool.submit(_raw, mortal, path, endless, "alone") for path in spoken.ALL}
        raising = [pool.submit(way) for way in ways[:3]]
        failed = pool.submit(ways[3])
        wait_for(lambda: _busy(mortal, "w-1") >= 8, "all to be taken")
        time.sleep(0.3)  # let some text flow: the case is a loss in mid-answer
        _kill(mortal, "w-1")
        for path, future in asked.items():
            *before, last = spoken.events(path, future.result())
            assert len(before) > 2, path
            assert "[DONE]" not in future.result()
            assert all(
                word not in future.result() for word in ("message_stop", "response.completed", '"done":true')
            )
            if path == spoken.RESPONSES:
                assert last["type"] == "response.failed"
                assert last["response"]["error"]["code"] == "worker_lost"
            else:
                assert last["error"], path
        for raised in raising:
            error = raised.exception()
            assert isinstance(error, openai.APIError | anthropic.APIStatusError), error
        assert failed.result()[-1].type == "response.failed"
        assert spoken.streamed(spoken.CHAT, beside.result()).text == "a" * 100
    mortal.start("worker", "w-1")
    mortal.wait_ready("w-1")
