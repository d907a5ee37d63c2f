"""Ctrl-C while something waits: what goes on is said, nothing breaks, the exit code is a shell's."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, chat, script, wait_for
from tests.integration.operating import Operator, operating, running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
INTERRUPTED = 130
needs_mlx = pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed")


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


def interrupt(command: subprocess.Popen[str]) -> str:
    os.killpg(command.pid, signal.SIGINT)
    output = command.communicate(timeout=PATIENCE_S)[0]
    assert command.returncode == INTERRUPTED, output
    assert "Traceback" not in output
    return output


def test_whoever_stops_waiting_for_up_is_told_what_goes_on_and_how_to_end_it(operator):
    operator.init("fake-1", load_s="60")
    up = operator.begin("up", "--wait")
    operator.wait_state("fake-1", "loading")
    output = interrupt(up)
    assert "goes on starting" in output
    assert "clusterctl status" in output
    assert "clusterctl down" in output
    assert operator.worker("fake-1")["state"] == "loading"


def test_whoever_stops_waiting_for_a_new_worker_is_told_how_to_undo_it(operator):
    operator.init()
    operator.run("up", "--wait")
    options = ("--id", "fake-1", "--engine", "fake", "--engine-option", "load_s=60")
    adding = operator.begin("add-worker", "--model", "m", *options, "--wait")
    operator.wait_state("fake-1", "loading")
    assert "clusterctl remove-worker fake-1" in interrupt(adding)
    operator.run("remove-worker", "fake-1")


class Busy:
    """A request of about ten seconds, which has to be answered wholly."""

    def __init__(self, operator: Operator) -> None:
        self.answers: list[httpx.Response] = []
        body = chat(script(tokens=["a"], repeat=400, delay_ms=25))
        url = f"{operator.url()}/v1/chat/completions"
        self.client = threading.Thread(
            target=lambda: self.answers.append(httpx.post(url, json=body, timeout=60))
        )
        self.client.start()
        wait_for(lambda: operator.worker("fake-1").get("running"), "the request to run")

    def is_answered(self) -> bool:
        self.client.join()
        return bool(self.answers[0].json()["choices"][0]["message"]["content"] == "a" * 400)


def test_a_busy_worker_that_is_removed_shows_that_it_finishes_its_requests(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    busy = Busy(operator)
    assert "fake-1: 1 requests are being finished" in operator.run("remove-worker", "fake-1")
    assert busy.is_answered()


def test_whoever_stops_waiting_for_down_or_a_removal_is_told_that_it_ends_all_the_same(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pids = operator.pids()
    busy = Busy(operator)
    removing = operator.begin("remove-worker", "fake-1")
    wait_for(lambda: operator.worker("fake-1").get("state") in (None, "draining"), "the drain to begin")
    assert "ends once its requests are finished" in interrupt(removing)
    down = operator.begin("down")
    wait_for(lambda: operator.status()["supervisor"]["state"] == "draining", "the end to begin")
    assert "being finished" in interrupt(down)
    assert busy.is_answered()
    wait_for(lambda: not any(running(pid) for pid in pids), "all to end")


@pytest.fixture
def hanging_pip(tmp_path: Path) -> dict[str, str]:
    """An environment whose pip tells that it runs and downloads for ever."""
    package = tmp_path / "pip"
    package.mkdir()
    (package / "__init__.py").touch()
    body = "import os, time\nopen(os.environ['TOLD'], 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (package / "__main__.py").write_text(body)
    search = [str(tmp_path), os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])]
    return {
        "PYTHONPATH": os.pathsep.join(search),
        "STUDIOFLEET_MODELS": str(tmp_path / "models"),
        "TOLD": str(tmp_path / "runs"),
    }


def downloading(command: list[str], environ: dict[str, str], tmp_path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", *command],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: (tmp_path / "runs").exists() and (tmp_path / "runs").read_text(), "the download")
    return process


def test_the_first_download_interrupted_leaves_nothing_and_no_traceback(hanging_pip, tmp_path):
    process = downloading(["worker.engine.embedded"], hanging_pip, tmp_path)
    assert "begins anew" in interrupt(process)
    assert not running(int((tmp_path / "runs").read_text()))
    assert list((tmp_path / "models").iterdir()) == []


@needs_mlx
@pytest.mark.mlx
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_told_to_stop_at_the_first_download_ends_as_asked(hanging_pip, tmp_path, operator, number):
    operator.run("init", "--http", "127.0.0.1:0")
    command = ["worker", "--config", str(operator.home.config), "--id", "smol-1"]
    process = downloading(command, {**operator.environ, **hanging_pip}, tmp_path)
    os.killpg(process.pid, number)
    output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert not running(int((tmp_path / "runs").read_text()))
    assert list((tmp_path / "models").iterdir()) == []
