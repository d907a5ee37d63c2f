"""The commands over a real cluster with the fake engine."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
from collections.abc import Iterator

import httpx
import pytest

from protocol.addresses import Home
from tests.integration.cluster import wait_for
from tests.integration.operating import CLUSTERCTL, Operator, operating, running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


def test_from_nothing_to_an_answer_and_back_to_nothing(operator):
    operator.init("fake-1", "fake-2")
    assert "ready" in operator.run("up", "--wait")
    assert operator.answers()
    pids = operator.pids()
    assert len(pids) == 4
    assert "the cluster is down" in operator.run("down")
    operator.nothing_is_left(pids)
    assert [worker["state"] for worker in operator.status()["workers"]] == ["stopped", "stopped"]


def test_status_has_every_key_that_programs_rely_on(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    status = json.loads(operator.run("status", "--json"))
    assert {"id", "url", "state", "pid", "restarts"} <= status["gateways"][0].keys()
    expected = "id model node engine state pid incarnation running waiting max_num_seqs max_waiting"
    expected += " rejected breaker last_error restarts"
    assert set(expected.split()) <= status["workers"][0].keys()
    assert status["workers"][0]["state"] == status["gateways"][0]["state"] == "ready"
    assert status["workers"][0]["incarnation"]
    table = operator.run("status")
    assert "fake-1" in table
    assert "\x1b" not in table


def test_up_once_more_changes_nothing(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pids = operator.pids()
    operator.run("up", "--wait")
    assert operator.pids() == pids


def test_two_ups_at_once_start_one_cluster(operator):
    operator.init("fake-1")
    both = [operator.begin("up", "--wait") for _ in range(2)]
    outputs = [up.communicate(timeout=60)[0] for up in both]
    assert [up.returncode for up in both] == [0, 0], outputs
    assert operator.worker("fake-1")["restarts"] == 0
    assert sorted(operator.processes()) == sorted(operator.pids())
    operator.run("down")
    assert operator.processes() == []


def test_a_worker_joins_and_leaves_a_running_cluster(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    assert "is starting" in operator.add("fake-2")
    pid = operator.wait_state("fake-2", "ready")["pid"]
    before = operator.worker("fake-1")["pid"]
    operator.run("remove-worker", "fake-2")
    assert not running(pid)
    assert operator.worker("fake-1")["pid"] == before
    assert operator.answers()


def test_gateways_learn_that_a_model_came_and_that_it_went(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    url = operator.status()["gateways"][0]["url"]

    def models() -> list[str]:
        return [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]]

    operator.add("fake-2", "--served-name", "other")
    operator.wait_state("fake-2", "ready")
    assert models() == ["fake-model", "other"]
    operator.run("remove-worker", "fake-2")
    wait_for(lambda: models() == ["fake-model"], "the model to be gone")
    assert httpx.get(f"{url}/health/ready").status_code == 200
    body = {"model": "other", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 404


def test_a_worker_added_without_starting_waits_for_up(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    operator.add("fake-2", "--no-start")
    assert operator.worker("fake-2")["state"] == "stopped"
    operator.run("up", "--wait")
    assert operator.worker("fake-2")["state"] == "ready"


def test_a_killed_worker_serves_again_without_anyones_help(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    before = operator.worker("fake-1")
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: operator.worker("fake-1")["restarts"] == 1, "the restart")
    after = operator.wait_state("fake-1", "ready")
    assert after["incarnation"] != before["incarnation"]
    assert after["last_error"] == "ended by SIGKILL"
    assert operator.answers()


def test_a_killed_gateway_is_found_again_by_its_workers(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    gateway, worker = operator.status()["gateways"][0], operator.worker("fake-1")
    os.kill(gateway["pid"], signal.SIGKILL)
    wait_for(lambda: operator.status()["gateways"][0]["restarts"] == 1, "the restart")
    assert operator.wait_state("fake-1", "ready")["pid"] == worker["pid"]
    wait_for(operator.answers, "an answer")


def test_a_killed_supervisor_leaves_the_cluster_serving_and_up_adopts_it(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    supervisor, *others = operator.pids()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: operator.status()["supervisor"]["pid"] is None, "the supervisor to be gone")
    assert operator.answers()
    assert operator.worker("fake-1")["state"] == "ready"
    assert "without a supervisor" in operator.run("status")
    operator.run("up", "--wait")
    assert operator.pids()[1:] == others
    pids = operator.pids()
    operator.run("down")
    operator.nothing_is_left(pids)


def test_down_ends_what_a_killed_supervisor_left(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pids = operator.pids()
    os.kill(pids[0], signal.SIGKILL)
    operator.run("down")
    operator.nothing_is_left(pids)


def test_down_works_although_the_configuration_is_broken(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pids = operator.pids()
    operator.home.config.write_text("nonsense")
    operator.run("up", code=3)
    os.kill(pids[0], signal.SIGKILL)
    operator.run("down")
    operator.nothing_is_left(pids)


def test_down_while_the_workers_load_ends_the_wait_of_up(operator):
    operator.init("fake-1", load_s="60")
    up = operator.begin("up", "--wait")
    operator.wait_state("fake-1", "loading")
    pids = operator.pids()
    operator.run("down")
    output, _ = up.communicate(timeout=30)
    assert up.returncode == 1
    assert "taken down" in output
    operator.nothing_is_left(pids)


def test_a_worker_that_cannot_run_ends_the_wait_with_its_reason(operator):
    operator.init()
    operator.run("add-worker", "--model", "m", "--id", "w", "--engine", "no_such_package.engine:Engine")
    output = operator.run("up", "--wait", code=1)
    assert "w: parked" in output
    assert "no_such_package" in output
    worker = operator.worker("w")
    assert (worker["state"], worker["last_exit"]) == ("parked", 78)
    assert "no_such_package" in worker["last_error"]
    wait_for(lambda: operator.status()["gateways"][0]["state"] == "ready", "the gateway to be seen")


def test_a_worker_that_is_removed_while_no_supervisor_can_end_it_is_named(operator):
    operator.init("fake-1", "fake-2")
    operator.run("up", "--wait")
    pids = operator.pids()
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: operator.status()["supervisor"]["pid"] is None, "the supervisor to be gone")
    assert "fake-2 still runs" in operator.run("remove-worker", "fake-2")
    operator.run("up", "--wait")
    wait_for(lambda: not running(pids[3]), "the removed worker to end")
    pids = operator.pids()
    operator.run("down")
    operator.nothing_is_left(pids)


def test_a_wait_ends_at_its_time_limit_and_the_cluster_goes_on(operator):
    operator.init("fake-1", load_s="60")
    output = operator.run("up", "--wait", "--timeout", "8", code=1)
    assert "not ready: fake-1: loading" in output
    assert operator.worker("fake-1")["state"] == "loading"


def test_a_port_that_is_taken_is_named_before_anything_starts(operator):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        operator.run("init", "--workers", "0", "--http", address)
        assert f"{address} is in use" in operator.run("up", code=3)
    assert operator.status()["supervisor"]["pid"] is None


def test_another_configuration_is_refused_while_the_first_runs(operator, tmp_path):
    operator.init("fake-1")
    operator.run("up")
    other = tmp_path / "other.toml"
    shutil.copy(operator.home.config, other)
    assert "take it down first" in operator.run("up", "--config", str(other), code=3)


def test_a_changed_entry_is_told_and_left_to_the_operator(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pid = operator.worker("fake-1")["pid"]
    text = operator.home.config.read_text()
    operator.home.config.write_text(text.replace('engine = "fake"', 'engine = "fake"\nmax_num_seqs = 3'))
    assert "older configuration" in operator.run("up")
    assert operator.worker("fake-1")["pid"] == pid
    assert operator.worker("fake-1")["outdated"]


def test_in_the_foreground_ctrl_c_takes_everything_down(operator):
    operator.init("fake-1")
    up = operator.begin("up", "--foreground")
    operator.wait_state("fake-1", "ready")
    pids = operator.pids()
    assert up.pid in pids
    os.killpg(up.pid, signal.SIGINT)
    output, _ = up.communicate(timeout=60)
    assert up.returncode == 0, output
    operator.nothing_is_left(pids)


def test_the_cluster_outlives_the_terminal_that_it_was_started_from(operator):
    operator.init("fake-1")
    try:
        pid, terminal = pty.fork()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error}")
    if pid == 0:
        os.execve(CLUSTERCTL[0], [*CLUSTERCTL, "up"], operator.environ)
    wait_for(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "up to return")
    os.close(terminal)
    operator.wait_state("fake-1", "ready")
    assert operator.answers()


def test_a_home_with_a_long_name_has_its_sockets_elsewhere_for_a_while(operator):
    operator.home = Home(operator.home.path.parent / ("long-" * 18))
    operator.environ["STUDIOFLEET_HOME"] = str(operator.home.path)
    assert operator.home.sockets != operator.home.run
    operator.init("fake-1")
    operator.run("up", "--wait")
    assert operator.home.sockets.stat().st_mode & 0o777 == 0o700
    assert operator.answers()
    pids = operator.pids()
    operator.run("down")
    operator.nothing_is_left(pids)


def test_the_environment_of_up_reaches_the_workers(operator, tmp_path):
    (tmp_path / "my_engine.py").write_text("raise SystemError('this is my engine')\n")
    operator.init()
    operator.run("add-worker", "--model", "m", "--id", "w", "--engine", "my_engine:Engine")
    operator.environ["PYTHONPATH"] = str(tmp_path)
    operator.run("up")
    wait_for(
        lambda: "this is my engine" in (operator.home.logs / "w.log").read_text(),
        "the engine on PYTHONPATH to be imported",
    )
