"""A machine that does not answer, or that hangs: nobody else waits for it. Field case FC-102."""

from __future__ import annotations

import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl import journal
from clusterctl.node_placing import ADD
from clusterctl.upgrading import UPGRADE
from protocol.wire_keys import read_allowed
from tests.fleet.installed import installed
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import Machine, needs_sshd
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator

pytestmark = [pytest.mark.integration, needs_sshd, pytest.mark.timeout(600)]

FAKE = ("--model", "fake-model", "--engine", "fake")


@pytest.fixture(scope="module")
def studio() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fleet-") as name, installed("studio-2", Path(name) / "2") as it:
        yield it


@pytest.fixture
def hole() -> Iterator[socket.socket]:
    """It takes connections, and says nothing."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        hole.setblocking(False)
        yield hole


@pytest.fixture
def operator(studio: Machine, hole: socket.socket) -> Iterator[Operator]:
    """Whose fleet has one machine that answers, and studio-9, which is a black hole."""
    with fleet_of(studio) as operator:
        with operator.home.config.open("a") as file:
            file.write(
                f'\n[[nodes]]\nname = "studio-9"\nhost = "127.0.0.1"\nport = {hole.getsockname()[1]}\n'
            )
        yield operator


def callers(hole: socket.socket) -> int:
    """So many have come since the last look."""
    count = 0
    while True:
        try:
            hole.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_fc_102_a_machine_that_does_not_answer_holds_up_nobody(operator: Operator, hole: socket.socket):
    bad = operator.begin("add-worker", *FAKE, "--host", "studio-9", "--id", "far-9")
    wait_for(lambda: callers(hole), "the machine to be called")
    bad.send_signal(signal.SIGSTOP)
    try:  # while it holds whatever it took, each of these ends all the same
        operator.run("add-worker", *FAKE, "--id", "near-1", "--wait", limit_s=300)
        operator.run("add-worker", *FAKE, "--host", "studio-2", "--id", "far-1", "--wait", limit_s=300)
        assert "far-1" in operator.run("list")
        assert "far-1" in operator.run("status")
        assert operator.answers()
        operator.run("remove-worker", "far-1", limit_s=300)
        operator.run("remove-worker", "near-1", limit_s=300)
        assert bad.poll() is None
    finally:
        bad.send_signal(signal.SIGCONT)
    said = bad.communicate(timeout=300)[0]
    assert bad.returncode in (1, 6), said  # it stood still beyond the limits of ssh, and its own
    said = operator.run("add-worker", *FAKE, "--host", "studio-9", "--id", "far-9", code=6)
    assert "studio-9 (127.0.0.1): " in said
    assert "To try: ssh -p" in said
    assert "far-9" not in operator.home.config.read_text()
    assert read_allowed(operator.home).keys == {}
    assert journal.interrupted(operator.home) == []


@pytest.fixture
def dropping() -> Iterator[int]:
    """A port at which packets are dropped: whoever connects hangs."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.mark.parametrize("command", ["status", "plan", "node list"])
def test_fc_102_what_the_others_answer_is_shown_before_a_dead_one_is_given_up(
    studio: Machine, dropping: int, command: str
):
    with fleet_of(studio) as operator:
        with operator.home.config.open("a") as file:
            file.write(f'\n[[nodes]]\nname = "studio-9"\nhost = "127.0.0.1"\nport = {dropping}\n')
            for worker_id, node in (("far-1", "studio-2"), ("far-9", "studio-9")):
                file.write(f'\n[[workers]]\nid = "{worker_id}"\nmodel = "fake-model"\n')
                file.write(f'engine = "fake"\nnode = "{node}"\n')
        begun, arrived = time.monotonic(), {}
        with operator.begin(*command.split()) as looking:
            assert looking.stdout is not None
            for line in looking.stdout:
                arrived[line] = time.monotonic() - begun
        said = "".join(arrived)
        assert "it does not answer; check that it is on" in said
        assert looking.returncode == (6 if command == "plan" else 0), said
        of_others = next(at for line, at in arrived.items() if "far-1" in line or "studio-2" in line)
        dead = next(at for line, at in arrived.items() if "does not answer" in line)
        assert of_others < dead - 1.5, said  # ssh gives it up after 5 s
        assert dead < 50, said


def test_fc_102_what_was_cut_off_on_such_a_machine_waits_for_its_own_commands(
    operator: Operator, hole: socket.socket
):
    with journal.operation(operator.home, ADD, {"worker": "far-9", "node": "studio-9"}) as left:
        left.leave_open()
    operator.run("add-worker", *FAKE, "--id", "near-1")
    operator.run("add-worker", *FAKE, "--host", "studio-2", "--id", "far-1", limit_s=300)
    operator.run("remove-worker", "far-1", limit_s=300)
    operator.run("remove-worker", "near-1", limit_s=300)
    assert callers(hole) == 0
    assert len(journal.interrupted(operator.home)) == 1
    said = operator.run("remove-worker", "far-9", limit_s=300)
    assert "add-worker (worker far-9, node studio-9) of " in said
    assert "that cannot be undone or finished now, the next command tries again: studio-9" in said
    assert "unchanged: there is no worker far-9" in said
    assert callers(hole) > 0


def test_fc_102_an_upgrade_that_was_cut_off_on_such_a_machine_ends_no_command_for_others(
    operator: Operator, hole: socket.socket
):
    """Each looks whether the machine is there again, and goes on."""
    with journal.operation(operator.home, UPGRADE, {"node": "studio-9", "version": "1"}) as left:
        left.leave_open()
    said = operator.run("add-worker", *FAKE, "--host", "studio-2", "--id", "far-1", limit_s=300)
    assert "upgrade (node studio-9, version 1) of " in said
    assert "that cannot be undone or finished now, the next command tries again: studio-9" in said
    assert "far-1 is added" in said
    assert callers(hole) == 1
    assert len(journal.interrupted(operator.home)) == 1
    operator.run("remove-worker", "far-1", limit_s=300)
