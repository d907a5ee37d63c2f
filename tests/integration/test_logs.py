"""What the logs of a cluster tell of its traffic, and what they never tell."""

import json
import os
import signal
import subprocess

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, chat, config_text, fake_worker, running, script, wait_for
from tests.integration.operating import CLUSTERCTL

pytestmark = pytest.mark.integration

SECRET_KEY = "sk-marker-of-a-key"
SECRET_WORDS = "marker-of-a-prompt"


def ask(cluster, body, request_id=None, **further):
    headers = {"authorization": f"Bearer {SECRET_KEY}", "x-api-key": SECRET_KEY, **further}
    if request_id:
        headers["x-request-id"] = request_id
    url = f"{cluster.url()}/v1/chat/completions?key={SECRET_KEY}"
    return httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S)


def lines_of(cluster, process_id):
    return [json.loads(line) for line in cluster.log(process_id).splitlines()]


def access_line(cluster, request_id):
    found = [x for x in lines_of(cluster, "gw-1") if x.get("request_id") == request_id and "status" in x]
    assert len(found) == 1
    return found[0]


def test_each_request_has_one_access_line_with_what_became_of_it():
    config = config_text(fake_worker("w-1"), extra='[log]\nformat = "json"\n')
    with running(config, "w-1") as cluster:
        fields = {"tokens": ["a"], "repeat": 5, "delay_ms": 5}
        assert ask(cluster, chat(script(**fields)), "whole").status_code == 200
        assert ask(cluster, chat(script(**fields), stream=True), "streamed").status_code == 200
        retried = {"x-stainless-retry-count": "2"}
        assert ask(cluster, chat("hi", model="none"), "unknown", **retried).status_code == 404
        assert ask(cluster, chat(script(tokens=["a"], raise_at=0)), "broken").status_code == 500
        for request_id in ("whole", "streamed"):
            line = access_line(cluster, request_id)
            expected = {
                "level": "INFO", "process": "gw-1", "method": "POST", "path": "/v1/chat/completions",
                "status": 200, "model": "fake-model", "worker": "w-1", "attempts": 1, "completion_tokens": 5,
            }  # fmt: skip
            assert line.items() >= expected.items()
            assert 0 <= line["queue_s"] <= line["first_token_s"] <= line["duration_s"]
            assert line["tokens_per_s"] > 0
            assert line["finish"] in ("stop", "length")
        unknown = access_line(cluster, "unknown")
        assert (unknown["status"], unknown["finish"], unknown["retry"]) == (404, "model_not_found", 2)
        assert "retry" not in line
        assert access_line(cluster, "broken")["finish"] == "engine_failed"
        assert {line["process"] for line in lines_of(cluster, "w-1")} == {"w-1"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_clusterctl_merges_what_gateway_and_worker_say_of_a_request_by_its_id(form):
    config = config_text(fake_worker("w-1"), extra=f'[log]\nformat = "{form}"\n')
    with running(config, "w-1") as cluster:
        for request_id in ("broken", "broken-2"):
            assert ask(cluster, chat(script(tokens=["a"], raise_at=0)), request_id).status_code == 500
        shown = subprocess.run(
            [*CLUSTERCTL, "logs", "--request", "broken", "--json"],
            env={**os.environ, "STUDIOFLEET_HOME": str(cluster.home.path)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        ).stdout
    entries = [json.loads(line) for line in shown.splitlines()]
    assert {entry["id"] for entry in entries} == {"gw-1", "w-1"}
    assert [entry["time"] for entry in entries] == sorted(entry["time"] for entry in entries)
    assert all("broken" in entry["message"] and "broken-2" not in entry["message"] for entry in entries)
    assert {entry["level"] for entry in entries} == {"INFO", "ERROR"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_neither_keys_nor_prompts_nor_answers_are_in_any_log(form):
    workers = fake_worker("w-1") + fake_worker("w-2")
    config = config_text(workers, extra=f'[log]\nlevel = "debug"\nformat = "{form}"\n')
    with running(config, "w-1", "w-2") as cluster:
        bodies = [
            chat(SECRET_WORDS),
            chat(SECRET_WORDS, stream=True),
            chat(script(tokens=[SECRET_WORDS], raise_at=1)),
            chat(script(tokens=[SECRET_WORDS], exit_at=1), stream=True),
            chat(SECRET_WORDS, model="none"),
            chat(SECRET_WORDS, temperature="hot"),
            chat("fake:{" + SECRET_WORDS),
            {"model": "fake-model", "messages": [{"role": SECRET_WORDS, "content": SECRET_WORDS}]},
            {"model": "fake-model", "messages": [{"role": "user", "content": [{"type": SECRET_WORDS}]}]},
        ]
        for body in bodies:
            ask(cluster, body)
        httpx.post(f"{cluster.url()}/v1/chat/completions", content=f'{{"messages": "{SECRET_WORDS}')
        for process_id in cluster.processes:
            cluster.signal(process_id, signal.SIGTERM)
            cluster.wait_exit(process_id)
        logs = {path.name: path.read_text() for path in cluster.home.logs.iterdir()}
        assert logs["gw-1.log"].count(": POST /") == len(bodies) + 1
        for name, text in logs.items():
            assert SECRET_KEY not in text, name
            assert SECRET_WORDS not in text, name


def test_a_process_rotates_its_log_while_it_serves():
    config = config_text(fake_worker("w-1"), extra="[log]\nmax_bytes = 4096\nkeep = 2\n")
    with running(config, "w-1") as cluster:
        older = cluster.home.logs / "gw-1.log.2"

        def ask_until_rotated_twice():
            ask(cluster, chat(script(tokens=["a"])))
            return older.exists()

        wait_for(ask_until_rotated_twice, "two rotations")
        files = sorted(path for path in cluster.home.logs.iterdir() if path.name.startswith("gw-1"))
        assert [path.name for path in files] == ["gw-1.log", "gw-1.log.1", "gw-1.log.2"]
        assert all(path.stat().st_size < 2 * 4096 for path in files)
        cluster.signal("gw-1", signal.SIGTERM)
        assert cluster.wait_exit("gw-1") == 0
        assert "gateway gw-1 ends" in cluster.log("gw-1")
