"""Spans on their way to a collector that takes them, is slow, is not there, and comes back."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from protocol import traces
from protocol.collector import ROOM, Collector
from protocol.config import TracesConfig
from protocol.spans import Place, Span
from tests.integration.cluster import wait_for
from tests.otlp import collecting

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def span(number: int = 1, **more: str) -> Span:
    return Span("x", Place(TRACE, f"{number:016x}"), PARENT, 1.5e9, 1.5e9 + 2, {"n": number}, **more)  # type: ignore[arg-type]


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And with the SDK's logger as it was: a collector takes that over, for the life of a process."""
    monkeypatch.setattr("protocol.collector._PAUSE_S", 0.05)
    monkeypatch.setattr("protocol.collector._TIMEOUT_S", 2.5)
    theirs = logging.getLogger("opentelemetry")
    before = (theirs.propagate, list(theirs.handlers))
    yield
    theirs.propagate, theirs.handlers = before


def test_a_span_arrives_as_it_is():
    with collecting() as (endpoint, got):
        collector = Collector(endpoint, "studiofleet-gateway", "gw-1")
        first = Span("first", Place(TRACE, PARENT), "", 1.5e9, 1.5e9 + 3, {"words": ("a", "b"), "share": 0.5})
        collector.take([first, span(7, error="worker_lost", kind="client")])
        collector.close()
        seen, child = got.spans
        assert (seen.name, seen.trace_id, seen.span_id, seen.parent_id) == ("first", TRACE, PARENT, "")
        assert (seen.service, seen.process) == ("studiofleet-gateway", "gw-1")
        assert (seen.began_ns, seen.ended_ns) == (1_500_000_000 * 10**9, 1_500_000_003 * 10**9)
        assert seen.attributes == {"words": ["a", "b"], "share": 0.5}
        assert (child.parent_id, child.span_id, child.trace_id) == (PARENT, f"{7:016x}", TRACE)
        assert (child.error, child.kind, seen.error, seen.kind) == ("worker_lost", "client", "", "internal")


def test_without_a_collector_nothing_grows_nobody_waits_and_the_log_says_it_once(free_port, caplog):
    caplog.set_level(logging.INFO)
    collector = Collector(f"http://127.0.0.1:{free_port}/v1/traces", "s", "p")
    began = time.monotonic()
    for _ in range(20):
        collector.take(span(number) for number in range(ROOM))
    assert time.monotonic() - began < 10
    assert len(collector._waiting) <= ROOM
    wait_for(lambda: caplog.records, "the failure to be told")
    collector.take([span()])
    wait_for(lambda: not collector._waiting, "the next try")
    with collecting(free_port) as (_endpoint, got):

        def arrived() -> bool:
            collector.take([span(5)])
            return any(seen.span_id == f"{5:016x}" for seen in got.spans)

        wait_for(arrived, "spans to arrive again")
        wait_for(lambda: len(caplog.records) == 2, "that to be told")
        collector.close()
    (lost, again) = [record.getMessage() for record in caplog.records]
    assert lost.startswith(f"traces cannot be sent to http://127.0.0.1:{free_port}/v1/traces")
    assert "refused" in lost
    assert int(again.partition("again; ")[2].split()[0]) > 19 * ROOM


@pytest.mark.parametrize(
    ("status", "told"),
    [
        pytest.param(400, "400", id="refused"),
        pytest.param(307, "it answers 307 and points to None", id="redirected, which nobody follows"),
    ],
)
def test_what_a_collector_does_not_take_is_told_and_not_kept(status: int, told: str, caplog):
    with collecting() as (endpoint, got):
        got.status = status
        collector = Collector(endpoint, "s", "p")
        collector.take([span()])
        wait_for(lambda: caplog.records, "the refusal to be told")
        assert told in caplog.text
        got.status = 200
        collector.take([span(2)])
        wait_for(lambda: got.spans, "the next one")
        collector.close()
        assert [seen.span_id for seen in got.spans] == [f"{2:016x}"]


@contextmanager
def answering(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that says that to whatever it is sent, until the test is over."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while not over.is_set():
                with suppress(OSError), listener.accept()[0] as client:
                    client.recv(65536)
                    answer(client, over)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}/v1/traces"
        finally:
            over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def dripping(head: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def answer(client: socket.socket, over: threading.Event) -> None:
        client.sendall(head)
        while not over.wait(0.05):
            client.sendall(b"x")

    return answer


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nx-more: ", id="in its head"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", id="in its body"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", id="to its end"),
    ],
)
def test_a_collector_that_drips_its_answer_is_told_and_given_up(head, caplog, monkeypatch):
    monkeypatch.setattr("protocol.collector._TIMEOUT_S", 0.3)
    with answering(dripping(head)) as endpoint:
        collector = Collector(endpoint, "s", "p")
        collector.take([span()])
        wait_for(lambda: caplog.records, "that to be told")
        collector.close()
    assert "it did not answer within 0.3 s" in caplog.text


def test_an_answer_without_end_is_not_read(caplog):
    def answer(client: socket.socket, over: threading.Event) -> None:
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n")
        while not over.is_set():
            client.sendall(b"x" * 65536)

    with answering(answer) as endpoint:
        collector = Collector(endpoint, "s", "p")
        collector.take([span()])
        wait_for(lambda: caplog.records, "that to be told")
        collector.close()
    assert "its answer has more than 65536 bytes" in caplog.text


def test_without_an_endpoint_there_is_none():
    assert traces.collector(TracesConfig(), "s", "p") is None


def test_where_opentelemetry_is_not_installed_the_log_says_how_to_get_it(monkeypatch, caplog):
    monkeypatch.delitem(sys.modules, "protocol.collector")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert traces.collector(TracesConfig(endpoint="http://127.0.0.1:1/v1/traces"), "s", "p") is None
    assert "no traces are sent" in caplog.text
    assert "scripts/install --traces" in caplog.text


def test_who_wants_no_traces_does_not_even_import_what_makes_them():
    program = (
        "import sys, gateway.__main__, worker.__main__\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google.protobuf'))])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
