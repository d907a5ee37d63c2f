"""What is undone on a node when something goes wrong there, and what is left for the next command."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest

from clusterctl import journal, node_placing, node_workers, recovery
from clusterctl.node_workers import Witness
from clusterctl.operations import OperationError, RolledBackError
from clusterctl.runner import Ended, Runner
from clusterctl.ssh import HostUnreachableError
from protocol.addresses import Home
from protocol.config import ClusterConfig, GatewayConfig, NodeConfig, WorkerConfig
from protocol.folders import private_folder
from protocol.wire_keys import allow, allowed_path, read_allowed

CONFIG = ClusterConfig(
    version=1,
    gateway=GatewayConfig(id="gw-1", http="127.0.0.1:0", listen=("tcp://10.0.0.5:5555",)),
    nodes=(NodeConfig(name="studio-2", host="studio-2.local"),),
    workers=(WorkerConfig(id="far-1", model="m", engine="fake", node="studio-2"),),
)
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


class There(Runner):
    """A machine on which nothing fails but what is named."""

    name = "studio-2"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = ""

    def run(self, argv, *, stdin=b"", limit_s=60.0):
        self.calls.append(argv[0])
        return Ended(1, err="no") if argv[0] == self.fails else Ended(0)


class FakeNode:
    """A node that does what it is told, or is away."""

    name = "studio-2"
    config = CONFIG.nodes[0]
    prefix = PurePosixPath("/opt/studiofleet")
    config_file = prefix / "etc" / "cluster.toml"

    def __init__(self) -> None:
        self.runner, self.away = There(), False

    def clusterctl(self, version, arguments, limit_s=120.0):
        self.runner.calls.append(arguments[0])
        if self.away:
            raise HostUnreachableError("studio-2 does not answer")
        return Ended(0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    for folder in (home.path, home.keys):
        private_folder(folder)
    allow(home, "far-1", KEY)
    return home


def failing(home: Home, node: Any, error: BaseException) -> None:
    with (
        journal.operation(home, node_placing.ADD, {"worker": "far-1", "node": "studio-2"}) as operation,
        node_workers.undone_on_failure(home, node, "1.0", CONFIG, "far-1", operation),
    ):
        raise error


def test_what_failed_is_undone_there_and_here_and_told(home: Home):
    node = FakeNode()
    with pytest.raises(RolledBackError, match="the disk is full; what was begun on studio-2 is undone"):
        failing(home, node, OperationError("the disk is full"))
    assert node.runner.calls == ["/bin/sh", "down", "rm"]
    assert read_allowed(home).keys == {}
    assert journal.interrupted(home) == []


def test_a_file_of_keys_that_is_damaged_here_leaves_nothing_there(home: Home):
    allowed_path(home).write_text("nonsense")
    node = FakeNode()
    with pytest.raises(OperationError, match="no") as caught:
        failing(home, node, OperationError("no"))
    assert node.runner.calls == ["/bin/sh", "down", "rm"]
    assert "the next command for that node does it" in caught.value.__notes__[0]
    assert [entry.subject["worker"] for entry in journal.interrupted(home)] == ["far-1"]


def test_a_key_that_cannot_be_removed_there_is_left_for_the_next_command(home: Home):
    node = FakeNode()
    node.runner.fails = "rm"
    with pytest.raises(OperationError):
        failing(home, node, OperationError("no"))
    assert read_allowed(home).keys == {}
    assert len(journal.interrupted(home)) == 1


def test_whoever_interrupts_has_it_undone_and_is_not_told_of_a_fault(home: Home):
    with pytest.raises(KeyboardInterrupt):
        failing(home, FakeNode(), KeyboardInterrupt())
    assert read_allowed(home).keys == {}
    assert journal.interrupted(home) == []


def test_recovery_goes_on_when_a_file_of_keys_is_damaged(home: Home, monkeypatch: pytest.MonkeyPatch):
    home.config.write_text('version = 1\n[gateway]\nid = "gw-1"\nhttp = "127.0.0.1:0"\n')
    node = FakeNode()
    node.away = True
    with pytest.raises(HostUnreachableError):
        failing(home, node, HostUnreachableError("studio-2 does not answer"))
    allow(home, "far-1", KEY)
    allowed_path(home).write_text("nonsense")
    said: list[str] = []
    recovery.recover(home, home.config, said.append)
    assert "that cannot be undone or finished now, the next command tries again" in said[0]
    assert "holds" in said[0] or "not of the form" in said[0]
    assert len(journal.interrupted(home)) == 1
    allowed_path(home).unlink()
    recovery.recover(home, home.config, said.append)
    assert said[1].endswith("; it is undone")
    assert journal.interrupted(home) == []


def test_a_key_that_another_machines_worker_has_got_meanwhile_is_not_revoked(home: Home):
    moved = msgspec.structs.replace(CONFIG.workers[0], node="studio-3")
    config = msgspec.structs.replace(CONFIG, workers=(moved,))
    node: Any = FakeNode()
    node_workers.withdraw(home, node, "1.0", config, "far-1")
    assert node.runner.calls == ["/bin/sh", "down", "rm"]
    assert read_allowed(home).keys == {"far-1": KEY}


class Clock:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(node_placing, "time", clock)
    return clock


@pytest.mark.parametrize(
    "lost", [HostUnreachableError("gone"), OperationError("studio-2: clusterctl status failed: gone")]
)
def test_a_connection_that_is_lost_once_does_not_end_the_wait(
    home: Home, monkeypatch: pytest.MonkeyPatch, clock: Clock, lost: Exception
):
    answers: list[Exception | tuple[Witness, ...]] = [
        lost,
        (),
        (Witness("far-1", "parked", last_error="no weights"),),
    ]

    def witnesses(node: Any, version: str) -> tuple[Witness, ...]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(node_placing, "installed_version", lambda _node: "1")
    monkeypatch.setattr(node_workers, "witnesses", witnesses)
    with pytest.raises(OperationError, match="does not come up on studio-2: no weights"):
        node_placing.wait_until_serving(home, CONFIG, "far-1", 600.0, lambda _line: None)
    assert answers == []


@pytest.mark.parametrize(
    ("looks", "hopeless"),
    [
        ([("loading", 0), ("parked", 0)], True),
        ([("failed", 0), ("loading", 1), ("failed", 2), ("failed", 3)], True),
        ([("failed", 0), ("loading", 1), ("failed", 2)], False),
        ([("ready", 7), ("failed", 8), ("loading", 9)], False),  # of months before
        ([("ready", 7), ("loading", 0), ("failed", 1), ("failed", 2)], False),  # counted anew since its start
        ([("ready", 7), ("loading", 0), ("failed", 1), ("failed", 3)], True),
        ([("failed", None), ("failed", None)], False),
        ([], False),
    ],
)
def test_a_worker_that_is_started_in_vain_is_hopeless(looks: list[tuple[str, int | None]], hopeless: bool):
    attempts = node_workers.Attempts("far-1")
    found = [
        attempts.hopeless((Witness("other", "parked"), Witness("far-1", state, restarts)))
        for state, restarts in looks
    ]
    assert found[:-1] == [None] * len(found[:-1])
    assert bool(found and found[-1]) == hopeless
