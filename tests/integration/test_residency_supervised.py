"""On-demand workers under clusterctl: shown, restarted, drained, killed, parked and repaired."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.cluster import chat, wait_for
from tests.integration.operating import Operator, operating

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


def add(operator: Operator, name: str, *more: str, engine: str = "fake", **options: str) -> None:
    """An on-demand worker of the model `NAME`."""
    settings = [word for key, value in options.items() for word in ("--engine-option", f"{key}={value}")]
    named = ("--id", name, "--model", name, "--engine", engine, "--residency", "on_demand")
    operator.run("add-worker", *named, *settings, *more)


def ask(operator: Operator, model: str) -> httpx.Response:
    url = f"{operator.url()}/v1/chat/completions"
    return httpx.post(url, json=chat("hello", model=model), timeout=100)


def begin_to_ask(operator: Operator, model: str, statuses: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: statuses.append(ask(operator, model).status_code))
    thread.start()
    return thread


def test_the_cluster_is_up_while_its_models_are_not_loaded_and_each_is_shown_as_it_is(operator):
    operator.init()
    add(operator, "a", weights_mb="60", load_s="0.2")
    add(operator, "b", "--idle-timeout", "300", "--memory-mb", "70")
    operator.run("up", "--wait")
    assert {w["state"] for w in operator.status()["workers"]} == {"idle"}
    assert operator.run("list").count("on_demand") == 2
    assert ask(operator, "a").status_code == 200
    worker = operator.wait_state("a", "ready")
    assert (worker["memory_mb"], worker["resident_mb"], worker["on_demand"]) == (60, 60, True)
    table = operator.run("status")
    assert "60 MB" in table
    assert "idle" in table
    assert operator.worker("b")["memory_mb"] == 70


def test_a_worker_that_is_added_answers_with_a_token_before_the_command_returns(operator):
    operator.init()
    operator.run("up", "--wait")
    named = ("--id", "a", "--model", "a", "--engine", "fake", "--residency", "on_demand")
    assert "a answers: " in operator.run("add-worker", *named, "--wait")


def test_restart_drain_and_undrain_of_an_idle_worker(operator):
    operator.init()
    add(operator, "a")
    operator.run("up", "--wait")
    before = operator.worker("a")["pid"]
    operator.run("drain", "a")
    assert operator.worker("a")["state"] == "draining"
    operator.run("undrain", "a")
    assert operator.worker("a")["state"] == "idle"
    assert "unchanged" in operator.run("undrain", "a")
    operator.run("restart", "a", "--wait")
    assert operator.worker("a")["pid"] != before
    assert ask(operator, "a").status_code == 200


def test_what_a_killed_worker_held_is_free_and_who_waited_for_it_is_served_by_the_next(operator):
    operator.init()
    operator.home.config.write_text(
        operator.home.config.read_text() + "[residency]\nmemory_budget_mb = 100\n"
    )
    add(operator, "a", weights_mb="60", load_s="2.0")
    add(operator, "b", weights_mb="60")
    operator.run("up", "--wait")
    statuses: list[int] = []
    asking = begin_to_ask(operator, "a", statuses)
    pid = operator.wait_state("a", "loading")["pid"]
    os.kill(pid, signal.SIGKILL)
    assert ask(operator, "b").status_code == 200
    asking.join()
    assert statuses == [200]
    operator.run("down")
    assert list(operator.home.run.iterdir()) == []


def test_a_load_that_fails_is_tried_again_while_somebody_asks_and_parked_after_five(operator):
    fault = operator.home.path / "fault"
    operator.init()
    add(operator, "a", engine="tests.integration.foreign_engines:LoadsWhenRepaired", fault=str(fault))
    fault.touch()
    operator.run("up", "--wait")
    first = operator.worker("a")
    assert first["state"] == "idle"
    answer = ask(operator, "a")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker_available"
    parked = operator.wait_state("a", "parked")
    assert parked["restarts"] == 4
    assert "the weights are damaged: fault" in parked["last_error"]
    fault.unlink()
    operator.run("restart", "a", "--wait")
    assert operator.worker("a")["state"] == "idle"
    assert ask(operator, "a").status_code == 200


def test_a_load_that_fails_once_is_made_good_for_the_request_that_waits(operator):
    operator.init()
    mark = operator.home.path / "mark"
    add(operator, "a", engine="tests.integration.foreign_engines:LoadsAtSecondTry", mark=str(mark))
    operator.run("up", "--wait")
    assert ask(operator, "a").status_code == 200
    wait_for(lambda: operator.worker("a")["restarts"] == 1, "the restart to show")
