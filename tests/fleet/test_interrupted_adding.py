"""Whoever interrupts the adding of a worker on another machine: what becomes of it, and once more."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl import journal
from protocol.configfile import read_config
from protocol.wire_keys import read_allowed
from tests.fleet.installed import prefix_of
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import Machine, needs_sshd
from tests.integration.operating import Operator

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

INTERRUPTED = 130
SLOW = (
    "--model",
    "slow",
    "--engine",
    "fake",
    "--engine-option",
    "load_s=600",
    "--host",
    "studio-2",
    "--wait",
)
"""It has to be interrupted: it loads for longer than the test lasts."""
FAKE = ("--model", "slow", "--engine", "fake", "--host", "studio-2", "--wait")


@pytest.fixture(scope="module")
def operator(studios: list[Machine]) -> Iterator[Operator]:
    with fleet_of(*studios) as operator:
        yield operator


@pytest.fixture
def told(studios: list[Machine]) -> Path:
    """What the machine was told of the cluster."""
    return prefix_of(studios[0]) / "etc" / "cluster.toml"


def test_without_a_terminal_it_is_undone(operator: Operator, told: Path):
    before = operator.home.config.read_text()
    adding = operator.begin("add-worker", *SLOW, "--id", "slow-7", stdin=subprocess.DEVNULL)
    operator.wait_state("slow-7", "loading")
    os.killpg(adding.pid, signal.SIGINT)
    said = adding.communicate(timeout=300)[0]
    assert adding.returncode == INTERRUPTED, said
    assert "slow-7: what was begun is being undone" in said
    assert operator.home.config.read_text() == before
    assert "slow-7" not in read_allowed(operator.home).keys
    assert "slow-7" not in told.read_text()
    assert journal.interrupted(operator.home) == []


@pytest.mark.parametrize(("answer", "is_kept"), [("n", False), ("y", True)])
def test_at_a_terminal_it_is_asked(operator: Operator, told: Path, answer: str, is_kept: bool):
    before = operator.home.config.read_text()
    ours, its = pty.openpty()
    with os.fdopen(ours, "rb"), operator.begin("add-worker", *SLOW, "--id", "slow-8", stdin=its) as adding:
        os.close(its)
        operator.wait_state("slow-8", "loading")
        os.killpg(adding.pid, signal.SIGINT)
        os.write(ours, f"{answer}\n".encode())
        said = adding.communicate(timeout=300)[0]
    assert adding.returncode == INTERRUPTED, said
    assert "slow-8 is still starting. Keep it?" in said
    assert ("slow-8 is added" in said) == is_kept
    assert (operator.home.config.read_text() != before) == is_kept
    assert ("slow-8" in told.read_text()) == is_kept
    assert journal.interrupted(operator.home) == []
    if is_kept:
        assert operator.worker("slow-8")["state"] == "loading"
        operator.run("remove-worker", "slow-8", limit_s=300)


def test_one_that_was_killed_without_an_id_is_the_one_that_is_added_the_next_time(
    operator: Operator, told: Path
):
    adding = operator.begin("add-worker", *SLOW, stdin=subprocess.DEVNULL)
    operator.wait_state("slow-1", "loading")
    adding.kill()
    adding.communicate()
    said = operator.run("add-worker", *FAKE, limit_s=300)
    assert "add-worker (worker slow-1, node studio-2) of " in said
    assert "was interrupted in the step 'prove'; it is undone" in said
    assert "slow-1 is added (slow); it is serving on studio-2" in said
    assert [worker.id for worker in read_config(operator.home.config).workers] == ["slow-1"]
    assert told.read_text().count("[[workers]]") == 1
    assert read_allowed(operator.home).keys.keys() == {"slow-1"}


def test_who_is_there_already_is_unchanged_and_another_one_of_its_id_is_told_apart(
    operator: Operator, told: Path
):
    """It is there from the test before."""
    before, pid, text = operator.home.config.read_text(), operator.worker("slow-1")["pid"], told.read_text()
    written = told.stat().st_mtime_ns
    assert "unchanged: slow-1 is there already" in operator.run("add-worker", *FAKE[:-1], "--id", "slow-1")
    said = operator.run("add-worker", *FAKE, "--id", "slow-1", "--max-num-seqs", "3", code=3)
    assert "there is a worker 'slow-1' already, and it differs: max_num_seqs: 8 there, 3 asked" in said
    said = operator.run("add-worker", *FAKE[:-1], "--id", "slow-2", "--max-num-seqs", "3", "--dry-run")
    assert "+max_num_seqs = 3" in said
    assert operator.home.config.read_text() == before
    assert (told.read_text(), told.stat().st_mtime_ns) == (text, written)
    assert operator.worker("slow-1")["pid"] == pid
