"""Checks 19, 20 and 24: clients that leave, silence, and HTTP as bytes.

Of check 24, bodies in chunks, requests sent ahead and HTTP/1.0 are in
tests/integration/test_hostile_clients.py; HEAD, OPTIONS, 405, 404, spellings of paths and content types
in test_http.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.conformance import spoken
from tests.conformance import test_node as node
from tests.integration.cluster import Cluster, config_text, fake_worker, running, script
from tests.integration.raw_http import connect, exchange, get, parse, read_until, request

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.integration

KEEPALIVE_S = 0.25
SILENCE_S = 2.0
QUIET = script(tokens=["at ", "last"], prefill_ms=SILENCE_S * 1000)


@pytest.fixture(scope="module")
def quiet() -> Iterator[Cluster]:
    """A gateway that gives signs of life forty times as often as usual."""
    extra = f"limits.keepalive_s = {KEEPALIVE_S}\nqueue.max_requests = 400"
    with running(config_text(fake_worker("w-1", max_num_seqs=4), extra=extra), "w-1") as found:
        yield found


# --- 19: clients that leave ---


def test_check_19_two_hundred_clients_without_patience_and_then_one_with(quiet: Cluster):
    """vLLM's own test of cancellation: nobody works for those who left."""
    endless = script(tokens=["a"], repeat=100_000, delay_ms=5)

    async def impatient(client: httpx.AsyncClient, number: int) -> bool:
        path = spoken.ALL[number % len(spoken.ALL)]
        asked = spoken.body(path, endless, max_tokens=100_000, stream=number % 2 == 0)
        try:
            async with asyncio.timeout(0.5):
                await client.post(path, json=asked)
        except (TimeoutError, httpx.HTTPError):
            return True
        return False

    async def scenario() -> list[bool]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=quiet.url(), timeout=30, limits=limits) as client:
            return await asyncio.gather(*(impatient(client, number) for number in range(200)))

    assert all(asyncio.run(scenario()))
    began = time.monotonic()
    with httpx.Client(base_url=quiet.url(), timeout=60) as http:
        assert spoken.ask(http, spoken.CHAT, script(tokens=["here"])).text == "here"
    assert time.monotonic() - began < 20, "each of those who left wanted minutes"
    quiet.wait_idle(patience_s=20)


# --- 20: silence ---


@pytest.mark.parametrize("path", spoken.ALL)
def test_check_20_bytes_come_while_there_is_nothing_to_say(quiet: Cluster, path: str):
    asked = spoken.body(path, QUIET, stream=True)
    began = time.monotonic()
    with httpx.stream(
        "POST", quiet.url() + path, json=asked, timeout=30, headers={"accept-encoding": "gzip"}
    ) as answer:
        headers_s = time.monotonic() - began
        times, text = [began], b""
        for piece in answer.iter_raw():
            times.append(time.monotonic())
            text += piece
    assert "content-encoding" not in answer.headers
    assert headers_s < SILENCE_S / 2, "the status waits for nothing"
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) < SILENCE_S / 2, "the limit is four times shorter; a noisy machine may double it"
    assert len(times) >= 5
    assert spoken.streamed(path, text.decode()).text == "at last"


@pytest.mark.parametrize("path", [spoken.CHAT, spoken.COMPLETIONS])
def test_check_20_a_reader_that_dispatches_at_each_empty_line_finds_no_empty_event(quiet: Cluster, path: str):
    """As a line scanner in Go does it, with comments skipped before anything else is looked at."""
    text = httpx.post(quiet.url() + path, json=spoken.body(path, QUIET, stream=True), timeout=30).text
    assert ": keepalive\n" in text
    data, dispatched = "", []
    for line in text.split("\n")[:-1]:
        name, _, value = line.partition(":")
        if not line:
            dispatched.append(data)
            data = ""
        elif name == "data":
            data += value.removeprefix(" ") + "\n"
    assert dispatched[-1] == "[DONE]\n"
    assert all(json.loads(event)["choices"] is not None for event in dispatched[:-1])


def test_check_20_the_official_clients_read_on(quiet: Cluster):
    strict: dict[str, Any] = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True}
    messages: Any = [{"role": "user", "content": QUIET}]
    with openai.OpenAI(base_url=quiet.url() + "/v1", **strict) as client:
        chunks = client.chat.completions.create(model="fake-model", messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "at last"
        with client.responses.stream(model="fake-model", input=QUIET) as stream:
            for _event in stream:
                pass
            assert stream.get_final_response().output_text == "at last"
    with (
        anthropic.Anthropic(base_url=quiet.url(), **strict) as claude,
        claude.messages.stream(model="fake-model", max_tokens=9, messages=messages) as told,
    ):
        assert "".join(told.text_stream) == "at last"


@pytest.mark.timeout(480)
def test_check_20_the_clients_of_node_read_on(quiet: Cluster, tmp_path: Path):
    node.run(tmp_path, "silence.test.mjs", 2, BASE_URL=quiet.url(), TEXT=QUIET)


# --- 24: HTTP ---


@pytest.mark.parametrize("path", spoken.ALL)
def test_check_24_a_client_that_asks_before_it_sends_is_told_to_go_on(cluster: Cluster, path: str):
    sent = request(
        spoken.body(path, script(tokens=["a"])), path, headers=["Expect: 100-continue", "Connection: close"]
    )
    head, _, content = sent.partition(b"\r\n\r\n")
    with connect(cluster.url()) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        connection.sendall(content)
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", [*spoken.ALL, "/nowhere"])
def test_check_24_a_connection_serves_on_after_an_error(cluster: Cluster, path: str):
    """Also where the body of the request was not looked at."""
    wrong = request({"model": 7, "padding": "x" * 100_000}, path)
    health = get("/health", "Connection: close")
    with connect(cluster.url()) as connection:
        connection.sendall(wrong + health)
        received = read_until(connection, b'{"status":"ok"}')
    assert received.startswith(b"HTTP/1.1 4")
    assert received.count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize("host", ["[::1]:8000", "[::1]", "example.org:80", "GATEWAY", "", "xn--n3h.example"])
@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_check_24_any_host_and_any_case_of_header_names(cluster: Cluster, host: str, case: Any):
    content = json.dumps(spoken.body(spoken.CHAT, script(tokens=["a"]))).encode()
    lines = {"host": host, "content-type": "application/json", "content-length": len(content)}
    head = "\r\n".join(f"{case(name)}: {value}" for name, value in lines.items())
    sent = f"POST {spoken.CHAT} HTTP/1.1\r\n{head}\r\n{case('connection')}: close\r\n\r\n".encode()
    status, headers, body = parse(exchange(cluster.url(), sent + content))
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["choices"][0]["message"]["content"] == "a"
