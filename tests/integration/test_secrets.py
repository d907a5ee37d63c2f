"""What must not leak: prompts, answers and keys, whatever goes wrong with a request."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from clusterctl.wire_keys import ensure_pairs
from protocol.configfile import read_config
from protocol.keys import ensure_admin_key, read_admin_key
from protocol.wire_keys import read_wire_secret
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    wait_for,
)
from tests.integration.raw_http import exchange

pytestmark = pytest.mark.integration

PROMPT, ANSWER, KEY = "PROMPTxyzzy", "ANSWERxyzzy", "sk-KEYxyzzy"
MARKS = (PROMPT, ANSWER, KEY)
HEADERS = {
    "authorization": f"Bearer {KEY}",
    "x-api-key": KEY,
    "api-key": KEY,
    "cookie": f"session={KEY}",
    "user-agent": f"client/{KEY}",
}
LIMITS = """
[log]
level = "debug"
[limits]
max_body_bytes = 20000
body_timeout_s = 1.0
request_timeout_s = 2.0
[queue]
max_requests = 0
"""
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TOOL = {"type": "function", "function": {"name": PROMPT, "description": PROMPT, "parameters": {}}}


FAULTS: list[tuple[str, object]] = [
    (CHAT, b'{"messages": "' + PROMPT.encode()),
    (CHAT, json.dumps({"messages": PROMPT, "model": "fake-model"}).encode()),
    (CHAT, {"model": "fake-model", "messages": [{"role": "user", "content": {PROMPT: 1}}]}),
    (CHAT, {"model": "fake-model", "messages": [{"role": PROMPT, "content": PROMPT}]}),
    (CHAT, {"model": "fake-model", "messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}),
    (CHAT, chat(PROMPT, model="nobody-serves-this")),
    (CHAT, chat(PROMPT, temperature="hot")),
    (CHAT, chat(PROMPT, max_tokens=-1)),
    (CHAT, chat(PROMPT, tools=[TOOL], tool_choice="nonsense")),
    (
        CHAT,
        chat(PROMPT, response_format={"type": "json_schema", "json_schema": {"name": PROMPT, "schema": 5}}),
    ),
    (CHAT, chat(PROMPT * 5000)),
    (CHAT, chat(script(tokens=[ANSWER, ANSWER], raise_at=1))),
    (CHAT, chat(script(tokens=[ANSWER, ANSWER], raise_at=0))),
    (CHAT, chat("fake:{" + PROMPT)),
    (CHAT, chat(script(tokens=[ANSWER], nonsense=PROMPT))),
    ("/v1/completions", {"model": "fake-model", "prompt": {PROMPT: PROMPT}}),
    (
        RESPONSES,
        {"model": "fake-model", "input": [{"type": "message", "role": "user", "content": {PROMPT: 1}}]},
    ),
    (RESPONSES, {"model": "fake-model", "input": PROMPT, "previous_response_id": "resp_none"}),
    (
        MESSAGES,
        {
            "model": "fake-model",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": 5}],
            "system": PROMPT,
        },
    ),
    (
        MESSAGES,
        {
            "model": "fake-model",
            "max_tokens": 5,
            "messages": [{"role": "user", "content": script(raise_at=0, tokens=[ANSWER])}],
        },
    ),
    ("/tokenize", {"model": "fake-model", "prompt": PROMPT, "add_special_tokens": PROMPT}),
    ("/api/chat", {"model": "fake-model", "messages": [{"role": "user", "content": PROMPT, "images": [5]}]}),
    ("/v1/nothing", {"prompt": PROMPT}),
    ("/admin/reload", {"prompt": PROMPT}),
    ("/admin/workers/w-1/drain", {PROMPT: PROMPT}),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    workers = fake_worker("w-1", max_model_len=100_000) + fake_worker("w-2", max_model_len=100_000)
    with running(config_text(workers, extra=LIMITS), gateways=()) as found:
        ensure_admin_key(found.home)
        ensure_pairs(found.home, read_config(found.home.config))
        found.start("gateway", "gw-1")
        found.start("worker", "w-1")
        found.start("worker", "w-2")
        found.wait_ready("w-1", "w-2")
        yield found


def marks_in(text: str) -> list[str]:
    return [mark for mark in MARKS if mark in text]


def everything_written(cluster: Cluster) -> dict[Path, str]:
    """All that the processes left in their home, their keys apart."""
    files = [path for path in cluster.home.path.rglob("*") if path.is_file()]
    kept = [path for path in files if cluster.home.keys not in path.parents]
    return {path: path.read_text(errors="replace") for path in kept}


def nothing_leaked(cluster: Cluster) -> None:
    url = cluster.url()
    for path, text in everything_written(cluster).items():
        assert marks_in(text) == [], path
    for page in ("/metrics", "/admin/state", "/v1/models"):
        assert marks_in(httpx.get(url + page, timeout=PATIENCE_S).text) == [], page
    for process in cluster.processes.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            assert marks_in(" ".join(psutil.Process(process.pid).cmdline())) == []


def test_no_error_shows_what_was_asked_or_with_which_key(cluster: Cluster):
    headers = {**HEADERS, "content-type": "application/json"}
    shown = []
    for path, body in FAULTS:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"{cluster.url()}{path}?api_key={KEY}"
        answer = httpx.post(url, content=content, headers=headers, timeout=PATIENCE_S)
        if answer.status_code < 400 or marks_in(answer.text):
            shown.append((path, content[:200], answer.status_code, answer.text))
    assert shown == []
    nothing_leaked(cluster)


def test_neither_answers_nor_broken_streams_leave_a_trace(cluster: Cluster):
    for fields in ({}, {"raise_at": 1}, {"once": True, "exit_at": 1}):
        body = chat(script(tokens=[ANSWER, ANSWER], delay_ms=50, **fields), stream=True)
        with httpx.stream(
            "POST", cluster.url() + CHAT, json=body, headers=HEADERS, timeout=PATIENCE_S
        ) as answer:
            assert ANSWER in "".join(answer.iter_text())
    body = chat(script(tokens=[ANSWER], repeat=10_000, delay_ms=10), stream=True)
    with httpx.stream("POST", cluster.url() + CHAT, json=body, headers=HEADERS, timeout=PATIENCE_S) as answer:
        next(answer.iter_bytes())
    exchange(cluster.url(), f"GET /{PROMPT} HTTP/9.9\r\nauthorization: {KEY}\r\n\r\n".encode())
    hung = httpx.post(cluster.url() + CHAT, json=chat(script(tokens=[ANSWER], hang_at=0)), timeout=PATIENCE_S)
    assert (hung.status_code, marks_in(hung.text)) == (504, [])
    wait_for(lambda: not cluster.state()["gateways"][0]["streams"], "the streams to end")
    nothing_leaked(cluster)


def test_secret_keys_are_in_no_log_and_no_command_line(cluster: Cluster):
    secrets = [
        read_admin_key(cluster.home),
        *(read_wire_secret(cluster.home, i) for i in ("gw-1", "w-1", "w-2")),
    ]
    headers = {"authorization": f"Bearer {secrets[0]}"}
    assert httpx.post(cluster.url() + "/admin/reload", headers=headers, timeout=PATIENCE_S).status_code == 200
    command_lines = "".join(" ".join(p.args) for p in cluster.processes.values() if isinstance(p.args, list))
    written = "".join(everything_written(cluster).values()) + command_lines
    assert [secret for secret in secrets if secret in written] == []
