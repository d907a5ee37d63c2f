"""Words that no log, metric, span or page of the operator may have: said in every dialect, and looked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from protocol.keys import ensure_admin_key, read_admin_key
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    config_text,
    fake_worker,
    running,
    script,
    wait_for,
)
from tests.otlp import Collector, collecting

pytestmark = pytest.mark.integration

PROMPT, ANSWER, THOUGHT, CALL = "PROMPTcanary", "ANSWERcanary", "THOUGHTcanary", "CALLcanary"
WORDS = (PROMPT, ANSWER, THOUGHT, CALL)
SAYS = script(
    tokens=[
        "<think>",
        THOUGHT,
        "</think>",
        ANSWER,
        '<tool_call>{"name": "look", "arguments": {"at": "' + CALL + '"}}</tool_call>',
    ]
)
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string", "description": PROMPT}}}
TOOL = {"type": "function", "function": {"name": "look", "description": PROMPT, "parameters": PARAMETERS}}
TURNS = [{"role": "system", "content": PROMPT}, {"role": "user", "content": SAYS}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS, "tools": [TOOL], "user": PROMPT, "metadata": {"a": PROMPT}},
    "/v1/completions": {"prompt": script(tokens=[ANSWER]), "stop": [PROMPT], "user": PROMPT},
    "/v1/responses": {
        "input": SAYS,
        "instructions": PROMPT,
        "tools": [{"type": "function", **TOOL["function"]}],  # type: ignore[dict-item]
        "prompt_cache_key": PROMPT,
    },
    "/v1/messages": {
        "system": PROMPT,
        "messages": [{"role": "user", "content": SAYS}],
        "tools": [{"name": "look", "description": PROMPT, "input_schema": PARAMETERS}],
        "metadata": {"user_id": PROMPT},
        "max_tokens": 50,
    },
    "/api/chat": {"messages": TURNS, "tools": [TOOL]},
    "/api/generate": {"prompt": SAYS, "system": PROMPT},
    "/api/v0/chat/completions": {"messages": TURNS, "tools": [TOOL]},
    "/api/v0/completions": {"prompt": script(tokens=[ANSWER])},
}
COMPUTED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "embedder", "input": [PROMPT, PROMPT], "user": PROMPT},
    "/api/embed": {"model": "embedder", "input": PROMPT},
    "/v1/rerank": {"model": "ranker", "query": PROMPT, "documents": [PROMPT]},
}
SETTINGS = '[log]\nlevel = "debug"\nformat = "json"\n'


def clusterctl(cluster: Cluster, *arguments: str) -> str:
    result = CliRunner().invoke(
        cli, arguments, env={"STUDIOFLEET_HOME": str(cluster.home.path)}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.fixture
def collector() -> Iterator[tuple[str, Collector]]:
    with collecting() as found:
        yield found


@pytest.fixture
def cluster(collector: tuple[str, Collector]) -> Iterator[Cluster]:
    options = {"tool_parser": "hermes", "reasoning_parser": "think"}
    workers = "".join(fake_worker(w, engine_options=options) for w in ("w-1", "w-2"))
    for name, task in (("embedder", "embed"), ("ranker", "rerank")):
        workers += fake_worker(name, model=name, engine_options={"task": task})
    with running(
        config_text(workers, extra=f'{SETTINGS}[traces]\nendpoint = "{collector[0]}"\n'), gateways=()
    ) as found:
        ensure_admin_key(found.home)
        found.start("gateway", "gw-1")
        for worker_id in ("w-1", "w-2", "embedder", "ranker"):
            found.start("worker", worker_id)
        found.wait_ready("w-1", "w-2", "embedder", "ranker")
        yield found


def ask(url: str, key: str) -> list[str]:
    """Every dialect, streamed and not; the ids of the requests."""
    headers = {"authorization": f"Bearer {key}", "session_id": PROMPT, "user-agent": PROMPT}
    ids = []
    for path, body in REQUESTS.items():
        for stream in (False, True):
            asked = {"model": "fake-model", **body, "stream": stream}
            answer = httpx.post(url + path, json=asked, headers=headers, timeout=PATIENCE_S)
            assert (answer.status_code, ANSWER in answer.text) == (200, True), (path, stream, answer.text)
            ids.append(answer.headers["x-request-id"])
    for path, asked in COMPUTED.items():
        answer = httpx.post(url + path, json=asked, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200, (path, answer.text)
        ids.append(answer.headers["x-request-id"])
    wrong = httpx.post(url + "/v1/chat/completions", json={"messages": PROMPT}, headers=headers)
    assert (wrong.status_code, PROMPT in wrong.text) == (400, False)
    return ids


def told(cluster: Cluster, ids: list[str]) -> Iterator[tuple[str, str]]:
    """All that can be read of a cluster by who may not read what it was asked, with where that is."""
    admin = {"authorization": f"Bearer {read_admin_key(cluster.home)}"}
    for path in cluster.home.path.rglob("*"):
        if path.is_file() and cluster.home.keys not in path.parents:
            yield str(path), path.read_text(errors="replace")
    pages = ["/metrics", "/admin/state", "/v1/models", "/openapi.json", "/health/ready"]
    for page in [*pages, *(f"/admin/requests/{request_id}" for request_id in ids)]:
        answer = httpx.get(cluster.url() + page, headers=admin, timeout=PATIENCE_S)
        assert answer.status_code == 200, (page, answer.text)
        yield page, answer.text
    with httpx.stream("GET", cluster.url() + "/admin/feed", headers=admin, timeout=PATIENCE_S) as feed:
        yield "/admin/feed", next(feed.iter_text())
    for arguments in (("explain", ids[0]), ("logs",), ("status", "--json"), ("keys", "list")):
        yield " ".join(arguments), clusterctl(cluster, *arguments)
    for name, process in cluster.processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield f"command line of {name}", " ".join(psutil.Process(process.pid).cmdline())


def test_neither_prompts_nor_answers_nor_keys_are_told_anywhere(
    cluster: Cluster, collector: tuple[str, Collector]
):
    key = clusterctl(cluster, "keys", "create", "canary").splitlines()[-1]
    url = cluster.url()
    wait_for(lambda: httpx.get(url + "/v1/models").status_code == 401, "the key to be asked for")
    ids = ask(url, key)
    cluster.wait_idle()
    texts = dict(told(cluster, ids))
    spans = collector[1]
    wait_for(lambda: len({span.trace_id for span in spans.spans}) > len(ids), "the traces to arrive")
    texts["traces"] = "".join(body.decode("latin-1") for body in spans.bodies)
    assert all(request_id in texts["traces"] for request_id in ids)
    assert all(request_id in json.dumps(texts) for request_id in ids)  # it was looked in the right places
    secrets = (*WORDS, key, read_admin_key(cluster.home))
    assert [(where, word) for where, text in texts.items() for word in secrets if word in text] == []
