"""Commands that change nodes at one time, or are cut off in the middle, over real sshds."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from clusterctl import journal
from clusterctl.node_lock import Held, held_there
from clusterctl.nodes import Node
from clusterctl.operations import OperationError
from protocol.configfile import read_config
from protocol.wire_keys import read_allowed
from tests.fleet.installed import VERSION, prefix_of
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import Machine, needs_sshd
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

FAKE = ("--model", "fake-model", "--engine", "fake")


@pytest.fixture(scope="module")
def operator(studios: list[Machine]) -> Iterator[Operator]:
    with fleet_of(*studios) as operator:
        yield operator


def node_of(operator: Operator, studio: Machine) -> Node:
    return Node(read_config(operator.home.config).node_named(studio.name), operator.home)


def told(studio: Machine) -> str:
    """What the machine was told of the cluster."""
    return (prefix_of(studio) / "etc" / "cluster.toml").read_text()


def test_two_that_are_added_at_once_do_not_collide(operator: Operator, studios: list[Machine]):
    hosts = ["studio-2", "studio-2", "studio-3"]
    adding = [operator.begin("add-worker", *FAKE, "--host", host) for host in hosts]
    said = [process.communicate(timeout=300)[0] for process in adding]
    assert [process.returncode for process in adding] == [0, 0, 0], said
    workers = {worker.id: worker.node for worker in read_config(operator.home.config).workers}
    assert sorted(workers) == ["fake-model-1", "fake-model-2", "fake-model-3"]
    assert sorted(workers.values()) == hosts
    for worker_id in workers:
        operator.wait_state(worker_id, "ready")
    assert read_allowed(operator.home).keys.keys() == workers.keys()
    assert journal.interrupted(operator.home) == []


def test_a_worker_that_is_removed_finishes_what_it_has_beside_others(operator: Operator):
    """Which are there from the test before; so the machine goes on."""
    slow = ("--served-name", "slow", "--engine-option", "decode_tokens_per_s=8", "--id", "slow-1")
    operator.run("add-worker", *FAKE, *slow, "--host", "studio-2", "--wait", limit_s=240)
    body = {"model": "slow", "max_tokens": 56, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "hello"}]
    url = operator.status()["gateways"][0]["url"]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=120)
        wait_for(lambda: operator.worker("slow-1")["running"] == 1, "the request to run")
        operator.run("remove-worker", "slow-1", limit_s=240)
        assert asked.result().json()["usage"]["completion_tokens"] == 56


def test_an_add_that_was_killed_is_undone_by_the_next_command(operator: Operator, studios: list[Machine]):
    studio = studios[0]
    before = operator.home.config.read_text()
    cut_off(operator, studio, "up", "add-worker", *FAKE, "--host", studio.name, "--id", "far-1")
    said = operator.run("remove-worker", "far-1", limit_s=240)
    assert re.search(
        r"add-worker \(worker far-1, node studio-2\) of .* was interrupted in the step 'start'", said
    )
    assert "; it is undone" in said
    assert operator.home.config.read_text() == before
    assert "far-1" not in told(studio)
    assert not (prefix_of(studio) / "etc" / "keys" / "wire" / "far-1.key").exists()
    assert "far-1" not in read_allowed(operator.home).keys
    assert "interrupted" not in operator.run("remove-worker", "far-1")


def test_a_removal_that_was_killed_is_finished_by_the_next_command(
    operator: Operator, studios: list[Machine]
):
    studio = studios[0]
    operator.run("add-worker", *FAKE, "--host", studio.name, "--id", "far-2", limit_s=240)
    operator.wait_state("far-2", "ready")
    cut_off(operator, studio, "up", "remove-worker", "far-2")
    assert "far-2" in operator.home.config.read_text()
    said = operator.run("add-worker", *FAKE, "--id", "near-1")
    assert "interrupted" not in said  # it is of no concern to this machine
    said = operator.run("remove-worker", "far-2", limit_s=240)
    assert "remove-worker (worker far-2, node studio-2) of " in said
    assert "; it is finished now" in said
    assert "far-2" not in operator.home.config.read_text()
    assert "far-2" not in read_allowed(operator.home).keys


def cut_off(operator: Operator, studio: Machine, word: str, *command: str) -> None:
    """Kill a command while the machine does what has that word."""
    prefix = prefix_of(studio)
    (prefix / "holding").unlink(missing_ok=True)
    (prefix / "hold").write_text(word)
    process = operator.begin(*command)
    try:
        wait_for((prefix / "holding").exists, "it to come so far")
    finally:
        process.kill()
        process.communicate()
        (prefix / "hold").unlink()


def test_a_machine_is_changed_from_one_place_at_a_time(operator: Operator, studios: list[Machine]):
    held = Held(node_of(operator, studios[0]), VERSION)
    lock = prefix_of(studios[0]) / "etc" / "operator.lock"
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("jo on mac-7 (pid 42)")
        other.flush()
        by_whom = pytest.raises(OperationError, match=r"is being changed by jo on mac-7 \(pid 42\)")
        with by_whom, held_there(held, 0.1):
            pass
    with held_there(held, 0.1):
        assert f"(pid {os.getpid()})" in lock.read_text()
        with lock.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with held_there(held, 60.0):
        pass


HOLD = """
import os, sys, time
from clusterctl.node_lock import Held, held_there
from clusterctl.nodes import Node
from protocol.addresses import Home
from protocol.configfile import read_config
home = Home.from_environment(os.environ)
with held_there(Held(Node(read_config(home.config).node_named("studio-2"), home), sys.argv[1]), 60):
    print("held", flush=True)
    time.sleep(600)
"""


def test_whoever_is_killed_leaves_the_lock_of_a_machine(operator: Operator, studios: list[Machine]):
    command = [sys.executable, "-P", "-c", HOLD, VERSION]
    with subprocess.Popen(command, env=operator.environ, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
    with held_there(Held(node_of(operator, studios[0]), VERSION), 60.0):
        pass
