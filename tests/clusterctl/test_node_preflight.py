"""What is asked of a node before a worker is placed there."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest

from clusterctl import node_preflight
from clusterctl.node_facts import NodeFacts, read_facts
from clusterctl.operations import RefusedError
from clusterctl.runner import Ended, LocalRunner, Runner
from protocol.config import ClusterConfig, GatewayConfig, WorkerConfig
from tests.clusterctl.test_model_commands import write_model
from tests.clusterctl.test_nodes import MAC

WORKER = WorkerConfig(id="far-1", model="org/m", node="studio-2", max_model_len=8192)
FAKE = WorkerConfig(id="far-1", model="org/m", node="studio-2", engine="fake")
FOLDER = "/opt/studiofleet/models/org/m"
PASSED = "takes no workers of other machines"
"""Of the check that comes after those of the machine and the model."""


class There(Runner):
    """A machine with these folders, on which Python answers so."""

    name = "studio-2"

    def __init__(self, *folders: str) -> None:
        self.folders = folders
        self.python = Ended(0, "whole\nDevice(gpu, 0)\n")

    def run(self, argv, *, stdin=b"", limit_s=60.0):
        if argv[0] == "test":
            return Ended(0 if argv[2] in self.folders else 1)
        return self.python


class FakeNode:
    """A node whose own clusterctl answers as is said, first word by first word."""

    name = "studio-2"
    prefix = PurePosixPath("/opt/studiofleet")
    config_file = prefix / "etc" / "cluster.toml"

    def __init__(self, *folders: str, fit: Ended = Ended(0), verify: Ended = Ended(0)) -> None:  # noqa: B008
        self.runner, self.answers, self.asked = There(*folders), {"fit": fit, "verify": verify}, list[Any]()
        self.told = MAC

    def facts(self) -> NodeFacts:
        return read_facts(self.told)

    def clusterctl(self, version, arguments, limit_s=120.0):
        self.asked.append((version, list(arguments)))
        return self.answers[arguments[1]]


class Copied(There):
    """One that is this machine, but for its Python."""

    def run(self, argv, *, stdin=b"", limit_s=60.0):
        if argv[0] in ("test", "/bin/sh"):
            return LocalRunner().run(argv, stdin=stdin, limit_s=limit_s)
        return self.python

    def command(self, argv):
        return list(argv)


def place(node: Any, worker: WorkerConfig = WORKER, said: list[str] | None = None, **options: bool) -> str:
    config = ClusterConfig(version=1, gateway=GatewayConfig(id="gw-1", http="127.0.0.1:0"), workers=(worker,))
    said = [] if said is None else said
    with pytest.raises(RefusedError) as refused:
        node_preflight.refuse_unfit(node, "1.0", config, worker.id, said.append, **options)
    return str(refused.value)


def test_what_was_looked_at_is_told():
    said: list[str] = []
    fit = "studio-2: 256 GB\nnew worker: 9.6 GB = 9.6 GB weights\ntogether: 39.6 GB of 190 GB\nit fits\n"
    assert PASSED in place(FakeNode(FOLDER, fit=Ended(0, fit)), said=said)
    assert said == [
        "machine   Apple M3 Ultra, 256 GiB, macOS 26.5.1 (25F80) arm64",
        "runtime   whole, MLX computes on Device(gpu, 0)",
        "model     its files are there, and whole",
        "memory    need 9.6 GB = 9.6 GB weights",
        "          39.6 GB of 190 GB taken after this",
    ]


def test_a_full_disk_is_refused():
    node = FakeNode(FOLDER)
    node.told = MAC.replace("free_kb=943718400", "free_kb=524288")
    assert place(node, FAKE).startswith("the disk of studio-2 is full: /opt/studiofleet has 0.5 GiB free")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("power=sleep 10", "it goes to sleep after 10 minutes without use; there: sudo pmset -a sleep 0"),
        ("power=autorestart 0", "it stays off after a power failure"),
        ("filevault=FileVault is On.", "FileVault is on: after a restart nothing of ours starts until"),
        ("updates=1", "macOS installs updates by itself, and restarts for them"),
    ],
)
def test_what_will_not_go_well_for_long_is_a_warning(told: str, words: str):
    node, said = FakeNode(FOLDER), list[str]()
    node.told = MAC.replace("end=yes", f"{told}\npower=System-wide power\nend=yes")
    assert PASSED in place(node, FAKE, said)
    warning = next(line for line in said if line.startswith("warning"))
    assert words in warning


def test_power_that_lasts_is_told():
    node, said = FakeNode(FOLDER), list[str]()
    told = "power=sleep 0\npower=autorestart 1\nfilevault=FileVault is Off.\nupdates=0\nend=yes"
    node.told = MAC.replace("end=yes", told)
    assert PASSED in place(node, FAKE, said)
    assert said[1] == "power     sleep 0, autorestart 1, FileVault off, automatic updates off"
    assert not any(line.startswith("warning") for line in said)


def test_a_damaged_version_is_named_with_its_cure():
    node = FakeNode(FOLDER)
    node.runner.python = Ended(1, err="Traceback\nModuleNotFoundError: No module named 'worker'\n")
    assert place(node, FAKE).startswith("1.0 is damaged on studio-2: ModuleNotFoundError: No module named")


def test_a_machine_without_metal_is_refused_for_engines_that_need_it():
    node = FakeNode(FOLDER)
    node.runner.python = Ended(1, "whole\n", "RuntimeError: [metal::load_device] No Metal device available\n")
    said = place(node)
    assert said.startswith("MLX computes nothing on studio-2: RuntimeError: [metal::load_device] No Metal")
    assert said.endswith("clusterctl node run studio-2 doctor")


def test_a_model_that_is_neither_there_nor_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("STUDIOFLEET_MODELS", str(tmp_path))
    node = FakeNode()
    said = place(node)
    assert f"there is no folder {FOLDER} on studio-2, nor can it be copied from here" in said
    assert said.endswith("clusterctl model pull org/m")
    assert node.asked == []


def test_a_model_of_a_folder_that_is_not_there():
    worker = msgspec.structs.replace(WORKER, model="/models/m")
    assert "clusterctl model push /models/m studio-2" in place(FakeNode(), worker)


def test_a_model_that_is_here_is_copied_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("STUDIOFLEET_MODELS", str(tmp_path / "here"))
    source = write_model(tmp_path / "here" / "org" / "m")
    node, said = FakeNode(), list[str]()
    node.prefix, node.runner = PurePosixPath(tmp_path / "there"), Copied()
    assert PASSED in place(node, said=said)
    copied = tmp_path / "there" / "models" / "org" / "m"
    assert (copied / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert any("copied from here in " in line and line.endswith(", and whole") for line in said)
    said.clear()
    assert PASSED in place(node, said=said)
    assert "model     its files are there, and whole" in said


def test_a_damaged_model_is_named_by_its_file():
    why = Ended(1, err=f"failed: m is damaged: {FOLDER}/model.safetensors has 1 bytes and should have 9\n")
    assert place(FakeNode(FOLDER, verify=why), force_memory=True) == (
        f"on studio-2: m is damaged: {FOLDER}/model.safetensors has 1 bytes and should have 9; copy it there"
        " anew: clusterctl model push org/m studio-2"
    )


def test_a_worker_that_does_not_fit_there_is_refused_with_the_arithmetic_of_the_node():
    node = FakeNode(FOLDER, fit=Ended(3, "studio-2: 16 GB\nit does not fit\n"))
    assert place(node).endswith(
        "does not fit into the memory of studio-2 (--force-memory goes on):\nstudio-2: 16 GB\nit does not fit"
    )
    version, words = node.asked[-1]
    assert (version, words[:4]) == ("1.0", ["model", "fit", "--model", "org/m"])
    assert words[-2:] == ["--max-model-len", "8192"]
    assert PASSED in place(node, force_memory=True)


def test_the_workers_that_it_has_count():
    node = FakeNode(FOLDER, str(FakeNode.config_file))
    assert PASSED in place(node)
    assert node.asked[-1][1][-2:] == ["--config", "/opt/studiofleet/etc/cluster.toml"]


def test_a_version_there_that_knows_no_such_checks_is_no_hindrance():
    older = Ended(2, err="No such command")
    assert PASSED in place(FakeNode(FOLDER, fit=older, verify=older))


@pytest.mark.parametrize(
    "answer", [Ended(1, err="failed: it does not tell its memory"), Ended(3, err="refused: m is odd")]
)
def test_a_machine_that_cannot_tell_whether_it_fits_is_not_taken_for_one_where_it_does(answer: Ended):
    node = FakeNode(FOLDER, fit=answer)
    said = place(node)
    assert "is not known (--force-memory goes on)" in said
    assert said.endswith(answer.err.partition(": ")[2])
    assert PASSED in place(node, force_memory=True)


def test_other_engines_are_not_measured():
    node = FakeNode(fit=Ended(3))
    assert PASSED in place(node, FAKE)
    assert node.asked == []
