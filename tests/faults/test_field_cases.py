"""Faults that others met in the field, each tried on a real cluster. The ids are those of the issue."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.states import ExitCode
from tests.integration.cluster import PATIENCE_S, chat, script, sse, wait_for
from tests.integration.operating import Operator, operating, running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ENGINES = "tests.integration.foreign_engines"


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


def add(operator: Operator, engine: str, **options: object) -> None:
    words = [w for key, value in options.items() for w in ("--engine-option", f"{key}={value}")]
    operator.run(
        "add-worker", "--model", "fake-model", "--id", "w", "--engine", f"{ENGINES}:{engine}", *words
    )


def ask(operator: Operator) -> httpx.Response:
    return httpx.post(f"{operator.url()}/v1/chat/completions", json=chat("hi"), timeout=PATIENCE_S)


def model_state(operator: Operator) -> str:
    models = httpx.get(f"{operator.url()}/v1/models", timeout=PATIENCE_S).json()["data"]
    return str(models[0]["state"])


# FC-03: engine process killed, front end says healthy
def test_fc_03_a_killed_worker_ends_its_stream_and_others_wait_for_the_next_one(operator, tmp_path):
    operator.init()
    add(operator, "LoadsWhenRepaired", fault=tmp_path / "fault", child=tmp_path / "child", pause_s=0.5)
    operator.run("up", "--wait")
    worker, child = operator.worker("w")["pid"], int((tmp_path / "child").read_text())
    assert running(child)
    body = chat("hi", stream=True)
    with httpx.stream(
        "POST", f"{operator.url()}/v1/chat/completions", json=body, timeout=PATIENCE_S
    ) as answer:
        lines = answer.iter_lines()
        first = next(line for line in lines if "one" in line)
        os.kill(worker, signal.SIGKILL)
        killed = time.monotonic()
        rest = sse(list(lines))
    assert time.monotonic() - killed < 5.0
    assert first
    assert rest[-1]["error"]["code"] == "worker_lost"
    assert "[DONE]" not in rest
    # The gateway lives, and tells that the model is away.
    assert httpx.get(f"{operator.url()}/health").status_code == 200
    assert model_state(operator) == "not-loaded"
    assert httpx.get(f"{operator.url()}/health/ready").status_code == 503
    # A new request waits for the worker that the supervisor starts.
    assert ask(operator).status_code == 200
    assert operator.worker("w")["pid"] != worker
    wait_for(lambda: not running(child), "the killed worker's child to be gone")


# FC-03: the same where the worker does not come back
def test_fc_03_where_no_worker_comes_back_requests_are_refused_at_once(operator, tmp_path):
    fault = tmp_path / "fault"
    operator.init()
    add(operator, "LoadsWhenRepaired", fault=fault)
    operator.run("up", "--wait")
    fault.touch()
    os.kill(operator.worker("w")["pid"], signal.SIGKILL)
    waiting: list[httpx.Response] = []
    client = threading.Thread(target=lambda: waiting.append(ask(operator)))
    client.start()
    operator.wait_state("w", "parked")
    client.join()
    for answer in (waiting[0], ask(operator)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.elapsed.total_seconds() < PATIENCE_S
    assert ask(operator).elapsed.total_seconds() < 2.0
    assert model_state(operator) == "not-loaded"
    fault.unlink()
    operator.run("restart", "w", "--wait")
    assert ask(operator).status_code == 200


# FC-03: the same where nobody is there to start it again
def test_fc_03_without_a_supervisor_requests_are_refused_at_once_until_there_is_one(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    supervisor, _gateway, worker = operator.pids()
    for pid in (supervisor, worker):
        os.kill(pid, signal.SIGKILL)

    def refused() -> httpx.Response | None:
        answer = ask(operator)
        return None if answer.status_code == 200 else answer

    answer = wait_for(refused, "a refusal")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.elapsed.total_seconds() < 5.0
    # The next supervisor starts it, and requests wait for that.
    operator.run("up")
    assert ask(operator).status_code == 200


# FC-37: health budget shorter than model load
def test_fc_37_a_load_that_takes_longer_than_every_limit_is_waited_for(operator):
    operator.init("fake-1", load_s="6.0")
    limits = "\n[limits]\nkeepalive_s = 0.5\n[heartbeat]\nsuspect_s = 1.0\nlost_s = 2.0\n"
    limits += "[routing]\nanswer_timeout_s = 1.0\n"
    operator.home.config.write_text(operator.home.config.read_text() + limits)
    operator.run("up")
    wait_for(operator.url, "the gateway")
    body = {**chat(script(tokens=["early"])), "stream": True}
    with httpx.stream(
        "POST", f"{operator.url()}/v1/chat/completions", json=body, timeout=PATIENCE_S
    ) as answer:
        assert answer.status_code == 200
        assert operator.worker("fake-1")["state"] in ("starting", "loading")
        lines = list(answer.iter_lines())
    assert len([line for line in lines if line.startswith(":")]) >= 3
    assert "early" in "".join(lines)
    assert lines[-2] == "data: [DONE]"
    assert ask(operator).status_code == 200
    worker = operator.worker("fake-1")
    assert (worker["state"], worker["restarts"], worker["last_error"]) == ("ready", 0, None)


# FC-37: the same where the load stands still
def test_fc_37_a_load_that_stands_still_is_ended_and_tried_again(operator):
    operator.init()
    operator.run(
        "add-worker", "--model", "m", "--id", "w", "--engine", f"{ENGINES}:Stalls", "--load-stall", "0.5"
    )
    operator.run("up")
    wait_for(lambda: operator.worker("w").get("restarts"), "the worker to be started again")
    worker = operator.worker("w")
    assert worker["last_exit"] == ExitCode.FAULT
    assert "no progress for 0.5 s (50% done, reading the weights); check the disk" in worker["last_error"]
    assert operator.wait_state("w", "parked")["last_exit"] == ExitCode.FAULT


# FC-37: "failed" is left by itself
def test_fc_37_a_load_that_failed_once_is_tried_again_and_the_request_waits(operator, tmp_path):
    operator.init()
    add(operator, "LoadsAtSecondTry", mark=tmp_path / "mark")
    operator.run("up")
    wait_for(operator.url, "the gateway")
    assert ask(operator).status_code == 200
    worker = operator.worker("w")
    assert (worker["state"], worker["restarts"]) == ("ready", 1)
    assert "the disk is not there yet" in worker["last_error"]


# FC-38: supervisor kills the parent, orphan workers keep the port and answer
def test_fc_38_a_worker_whose_supervisor_was_killed_is_adopted_and_never_doubled(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before = operator.worker("fake-1")
    os.kill(operator.pids()[0], signal.SIGKILL)
    wait_for(lambda: operator.status()["supervisor"]["pid"] is None, "the supervisor to be gone")
    text = operator.home.config.read_text()
    assert 'model = "fake-model"' in text
    operator.home.config.write_text(text.replace('model = "fake-model"', 'model = "new-model"'))

    told = operator.run("up", "--wait")
    assert "fake-1: left running with the older configuration" in told
    adopted = operator.worker("fake-1")
    assert (adopted["pid"], adopted["incarnation"]) == (before["pid"], before["incarnation"])
    assert adopted["outdated"]
    assert operator.generations() == {"gw-1": 1, "fake-1": 1}

    operator.run("restart", "fake-1", "--wait")
    after = operator.worker("fake-1")
    assert after["incarnation"] > before["incarnation"]
    assert not after["outdated"]
    assert not running(before["pid"])
    assert operator.generations() == {"gw-1": 1, "fake-1": 1}
    assert names(operator) == ["new-model"]
    answer: dict[str, Any] = httpx.post(
        f"{operator.url()}/v1/chat/completions", json=chat("hi", model="new-model"), timeout=PATIENCE_S
    ).json()
    assert answer["choices"][0]["message"]["content"]


def names(operator: Operator) -> list[str]:
    return [model["id"] for model in httpx.get(f"{operator.url()}/v1/models").json()["data"]]


# FC-38: one that runs although nobody manages it keeps a second one out
def test_fc_38_a_worker_that_nobody_manages_is_not_joined_by_another(operator, tmp_path: Path):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before = operator.worker("fake-1")
    os.kill(operator.pids()[0], signal.SIGKILL)
    for path in operator.home.run.glob("*.pid"):
        path.unlink()
    operator.run("up", "--wait")
    assert operator.worker("fake-1")["incarnation"] == before["incarnation"]
    assert operator.generations() == {"gw-1": 1, "fake-1": 1}
