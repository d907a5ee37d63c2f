"""Daily operation of a real cluster: restart and drain under load, parking and repair, logs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import certificate
from tests.clusterctl.hub_double import hub_of
from tests.clusterctl.test_model_commands import CONFIG
from tests.integration.cluster import PATIENCE_S, chat, script, wait_for
from tests.integration.load import Load
from tests.integration.operating import CLUSTERCTL, Operator, operating, running
from tests.protocol.test_model_folder import safetensors

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


def pid_of(operator: Operator, worker_id: str) -> int:
    return int(operator.worker(worker_id)["pid"])


def test_a_restart_of_the_only_worker_under_load_loses_nothing(operator):
    operator.init("fake-1", load_s="0.5", max_num_seqs="4")
    operator.run("up", "--wait")
    before = pid_of(operator, "fake-1")
    with Load(operator.url, clients=8) as load:
        for _ in range(2):
            load.wait_for_answers(20)
            assert "serves again" in operator.run("restart", "fake-1", "--wait")
        load.wait_for_answers(20)
    assert set(load.outcomes) == {"ok"}, load.outcomes
    worker = operator.worker("fake-1")
    assert worker["pid"] != before
    assert (worker["restarts"], worker["last_error"], worker["last_exit"]) == (2, None, 75)


def test_a_gateway_that_would_not_start_again_is_not_ended(operator, tmp_path):
    operator.init()
    cert, key = certificate(tmp_path, "gw")
    config = operator.home.config
    text = config.read_text().replace('id = "gw-1"', f'id = "gw-1"\ntls_cert = "{cert}"\ntls_key = "{key}"')
    config.write_text(text)
    operator.run("up", "--wait")
    pid = operator.status()["gateways"][0]["pid"]
    key.chmod(0o644)
    assert "the old one goes on serving: " in (told := operator.run("restart", "gw-1", code=3))
    assert f"chmod 600 {key}" in told
    key.chmod(0o600)
    operator.home.api_keys.write_text("{")
    operator.home.api_keys.chmod(0o600)
    assert "is no file of API keys" in operator.run("restart", "gw-1", code=3)
    assert operator.status()["gateways"][0]["pid"] == pid
    operator.home.api_keys.unlink()
    operator.run("restart", "gw-1", "--wait")
    assert operator.status()["gateways"][0]["pid"] != pid


def test_restarts_of_both_workers_one_after_the_other_under_load_lose_nothing(operator):
    operator.init("fake-1", "fake-2", load_s="0.5")
    operator.run("up", "--wait")
    before = [pid_of(operator, "fake-1"), pid_of(operator, "fake-2")]
    with Load(operator.url, clients=8) as load:
        for worker_id in ("fake-1", "fake-2"):
            load.wait_for_answers(20)
            operator.run("restart", worker_id, "--wait")
        load.wait_for_answers(20)
    assert set(load.outcomes) == {"ok"}, load.outcomes
    assert not any(running(pid) for pid in before)


def test_a_drained_worker_gets_nothing_under_load_until_it_is_undrained(operator):
    operator.init("fake-1", "fake-2")
    operator.run("up", "--wait")
    before = pid_of(operator, "fake-1")
    with Load(operator.url, clients=4) as load:
        load.wait_for_answers(10)
        operator.run("drain", "fake-1")
        worker = operator.worker("fake-1")
        assert (worker["state"], worker["running"], worker["waiting"]) == ("draining", 0, 0)
        load.wait_for_answers(20)
        assert operator.worker("fake-1")["running"] == 0
        assert "unchanged" in operator.run("drain", "fake-1")
        operator.run("undrain", "fake-1")
        wait_for(lambda: operator.worker("fake-1")["running"], "it to be asked again")
        assert "unchanged" in operator.run("undrain", "fake-1")
    assert set(load.outcomes) == {"ok"}, load.outcomes
    assert pid_of(operator, "fake-1") == before


def test_a_drain_waits_for_what_runs_and_with_a_limit_gives_it_up(operator):
    operator.init("fake-1")
    with operator.home.config.open("a") as config:
        config.write("\n[takeover]\nenabled = false\n")
    operator.run("up", "--wait")
    body = chat(script(tokens=["a"], repeat=100_000, delay_ms=20), stream=True)
    url = f"{operator.url()}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200
        waiting = operator.begin("drain", "fake-1")
        operator.wait_state("fake-1", "draining")
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)  # whoever waits may leave; the drain stays
        waiting.communicate(timeout=30)
        operator.run("drain", "fake-1", "--no-wait")
        output = operator.run("drain", "fake-1", "--timeout", "0.2")
        assert "1 requests are being finished" in output
        assert "worker_lost" in "".join(answer.iter_text())
    assert operator.worker("fake-1")["running"] == 0


def test_a_restart_applies_a_changed_entry(operator):
    operator.init("fake-1", "fake-2")
    operator.run("up", "--wait")
    text = operator.home.config.read_text()
    operator.home.config.write_text(text.replace('id = "fake-1"', 'id = "fake-1"\nmax_num_seqs = 3'))
    other = pid_of(operator, "fake-2")
    operator.run("restart", "fake-1", "--wait")
    worker = operator.worker("fake-1")
    assert (worker["max_num_seqs"], worker["outdated"]) == (3, False)
    assert pid_of(operator, "fake-2") == other
    assert operator.answers()


def test_a_restart_is_refused_when_the_file_is_broken_and_nothing_ends(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before = pid_of(operator, "fake-1")
    text = operator.home.config.read_text()
    operator.home.config.write_text("nonsense")
    operator.run("restart", "fake-1", code=3)
    operator.home.config.write_text(text)
    assert pid_of(operator, "fake-1") == before


def test_a_gateway_is_restarted_and_finishes_what_it_has(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before, worker = operator.status()["gateways"][0]["pid"], pid_of(operator, "fake-1")
    body = chat(script(tokens=["a"], repeat=50, delay_ms=20), stream=True)
    url = f"{operator.url()}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as answer:
        operator.run("restart", "gw-1")
        assert "[DONE]" in "".join(answer.iter_text())
    wait_for(lambda: operator.status()["gateways"][0]["pid"] not in (before, None), "the new gateway")
    wait_for(operator.answers, "an answer")
    assert pid_of(operator, "fake-1") == worker


def test_a_worker_that_hangs_is_restarted_too(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before = pid_of(operator, "fake-1")
    os.kill(before, signal.SIGSTOP)
    operator.run("restart", "fake-1", "--timeout", "0", "--wait")
    assert not running(before)
    assert operator.answers()


def test_what_was_stopped_on_purpose_is_refused_at_once_and_started_by_restart(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    os.kill(pid_of(operator, "fake-1"), signal.SIGTERM)
    operator.wait_state("fake-1", "stopped")

    def code() -> str | None:
        answer = httpx.post(f"{operator.url()}/v1/chat/completions", json=chat("hi"), timeout=PATIENCE_S)
        return str(answer.json()["error"]["code"]) if answer.status_code == 503 else None

    assert code() == "no_worker_available"
    operator.run("restart", "fake-1", "--wait")
    assert operator.answers()


def test_who_crashes_at_load_is_parked_with_its_log_and_repaired_and_restarted_by_one_command(
    operator, tmp_path
):
    fault = tmp_path / "fault"
    fault.touch()
    operator.init()
    engine = "tests.integration.foreign_engines:LoadsWhenRepaired"
    options = ("--engine-option", f"fault={fault}")
    operator.run("add-worker", "--model", "fake-model", "--id", "w", "--engine", engine, *options)
    output = operator.run("up", "--wait", code=1)
    assert "w: parked" in output
    worker = operator.worker("w")
    assert (worker["state"], worker["restarts"], worker["last_exit"]) == ("parked", 4, 70)
    assert len(worker["last_log"]) == 20
    assert any("the weights are damaged: fault" in line for line in worker["last_log"])
    told = operator.run("status")
    assert "clusterctl restart w" in told
    assert all(line in told for line in worker["last_log"])
    status = json.loads(operator.run("status", "--json"))
    assert status["workers"][0]["last_log"] == list(worker["last_log"])

    begun = time.monotonic()
    answer = httpx.post(f"{operator.url()}/v1/chat/completions", json=chat("hi"), timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
    assert "retry-after" in answer.headers
    assert time.monotonic() - begun < 5.0

    fault.unlink()
    operator.run("restart", "w", "--wait")
    worker = operator.worker("w")
    assert (worker["state"], worker["last_log"]) == ("ready", ())
    assert operator.answers()


def test_add_worker_waits_and_shows_a_token_of_the_new_one(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    output = operator.add("fake-2", "--engine-option", "load_s=1.0", "--wait")
    assert "fake-2: loading" in output
    assert "fake-2: ready" in output
    assert "fake-2 answers: '" in output
    assert re.search(r"^ready     fake-2 serves after \d+ s$", output, re.MULTILINE)
    _curl, url, _h, header, _d, body = shlex.split(output.partition("to ask it:\n")[2])
    name, _, value = header.partition(": ")
    asked = httpx.post(url, content=body, headers={name: value}, timeout=PATIENCE_S)
    assert asked.json()["model"] == "fake-model"
    again = operator.add("fake-2", "--engine-option", "load_s=1.0", "--wait")
    assert "unchanged" in again
    assert "answers: '" in again  # whoever is the quicker one
    refused = operator.run(
        "add-worker", "--model", "m", "--id", "bad", "--engine", "no_such_package.x:Y", "--wait", code=1
    )
    assert "no_such_package" in refused
    assert "clusterctl restart bad" in refused


def test_logs_follow_a_request_through_gateway_and_worker_and_over_rotation(operator):
    operator.init("fake-1")
    operator.home.config.write_text(operator.home.config.read_text() + '\n[log]\nlevel = "debug"\n')
    operator.run("up", "--wait")
    url = f"{operator.url()}/v1/chat/completions"

    def ask(request_id: str) -> None:
        answer = httpx.post(url, json=chat("hi"), headers={"x-request-id": request_id}, timeout=PATIENCE_S)
        assert answer.status_code == 200

    ask("req-first")
    shown = [
        json.loads(line) for line in operator.run("logs", "--request", "req-first", "--json").splitlines()
    ]
    assert {entry["id"] for entry in shown} == {"gw-1", "fake-1"}
    assert [entry["time"] for entry in shown] == sorted(entry["time"] for entry in shown)
    assert operator.run("logs", "--since", "0s").startswith("nothing was logged since ")
    assert "is started" in operator.run("logs", "supervisor", "--since", "10m")

    output = operator.home.path / "followed.txt"
    with output.open("wb") as file:
        following = subprocess.Popen(
            [*CLUSTERCTL, "logs", "gw-1", "-f", "--lines", "1"], env=operator.environ, stdout=file
        )
    try:
        wait_for(lambda: output.stat().st_size, "the first line")
        ask("req-second")
        wait_for(lambda: "req-second" in output.read_text(), "a line that is added")
        log = operator.home.logs / "gw-1.log"
        log.rename(log.with_name("gw-1.log.1"))
        log.write_text("2026-01-31 22:00:00,000 INFO gateway in the new file\n")
        wait_for(lambda: "in the new file" in output.read_text(), "a line after the rotation")
        following.send_signal(signal.SIGINT)
        assert following.wait(timeout=30) == 0
    finally:
        following.kill()
        following.wait()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.timeout(200)
def test_the_commands_in_the_documentation_work(operator, tmp_path):
    """All but the first block, of three Macs, which tests/fleet/test_operations_page.py types."""
    operator.init("smol-1")
    operator.run("up", "--wait")
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    block = "".join(blocks[1:]).replace("~/.studiofleet", str(operator.home.path))
    block = block.replace("http://127.0.0.1:8000", operator.url())
    block = block.replace("/Volumes/spare", str(tmp_path))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    config = {**CONFIG, "num_hidden_layers": 1}
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}"}
    with hub_of({**files, "model.safetensors": safetensors(8)}, "mlx-community/Qwen3-8B-4bit") as hub:
        models = {"HF_ENDPOINT": hub.url, "STUDIOFLEET_MODELS": str(tmp_path / "models")}
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            env={**operator.environ, **models, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    operator.wait_state("smol-1", "ready")
    log = (operator.home.logs / "smol-1.log").read_text()
    assert "asks to drain, then stay" in log
    assert "asks to take requests again" in log
