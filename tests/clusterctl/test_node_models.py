"""What is asked of a node about a worker's model before anything is done there."""

from __future__ import annotations

from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl import node_workers
from clusterctl.operations import RefusedError
from clusterctl.runner import Ended, Runner
from protocol.config import ClusterConfig, GatewayConfig, WorkerConfig

WORKER = WorkerConfig(id="far-1", model="org/m", node="studio-2", max_model_len=8192)
PASSED = "takes no workers of other machines"
"""Of the check that comes after those of the model."""


class There(Runner):
    """A machine with these folders."""

    name = "studio-2"

    def __init__(self, *folders: str) -> None:
        self.folders = folders

    def run(self, argv, *, stdin=b"", limit_s=60.0):
        assert argv[0] == "test"
        return Ended(0 if argv[2] in self.folders else 1)


class FakeNode:
    """A node whose own clusterctl says whether a worker fits."""

    name = "studio-2"
    prefix = PurePosixPath("/opt/studiofleet")
    config_file = prefix / "etc" / "cluster.toml"

    def __init__(self, answer: Ended, *folders: str) -> None:
        self.runner, self.answer, self.asked = There(*folders), answer, list[Any]()

    def facts(self):
        return SimpleNamespace(current="1.0")

    def clusterctl(self, version, arguments, limit_s=120.0):
        self.asked.append((version, list(arguments)))
        return self.answer


def place(node: Any, worker: WorkerConfig = WORKER, **options: bool) -> str:
    config = ClusterConfig(version=1, gateway=GatewayConfig(id="gw-1", http="127.0.0.1:0"), workers=(worker,))
    with pytest.raises(RefusedError) as refused:
        node_workers.refuse_unfit(node, "1.0", config, worker.id, **options)
    return str(refused.value)


def test_a_model_that_was_not_pushed_there():
    node = FakeNode(Ended(0))
    assert "clusterctl model push org/m studio-2" in place(node)
    assert node.asked == []


def test_a_worker_that_does_not_fit_there_is_refused_with_the_arithmetic_of_the_node():
    node = FakeNode(Ended(3, "studio-2: 16 GB\nit does not fit\n"), "/opt/studiofleet/models/org/m")
    assert place(node).endswith(
        "does not fit into the memory of studio-2 (--force-memory goes on):\nstudio-2: 16 GB\nit does not fit"
    )
    ((version, words),) = node.asked
    assert (version, words[:4]) == ("1.0", ["model", "fit", "--model", "org/m"])
    assert words[-2:] == ["--max-model-len", "8192"]
    assert PASSED in place(node, force_memory=True)


def test_the_workers_that_it_has_count():
    node = FakeNode(Ended(0), "/opt/studiofleet/models/org/m", str(FakeNode.config_file))
    assert PASSED in place(node)
    assert node.asked[0][1][-2:] == ["--config", "/opt/studiofleet/etc/cluster.toml"]


def test_a_version_there_that_knows_no_fit_is_no_hindrance():
    assert PASSED in place(FakeNode(Ended(2, err="No such command"), "/opt/studiofleet/models/org/m"))


@pytest.mark.parametrize(
    "answer", [Ended(1, err="failed: it does not tell its memory"), Ended(3, err="refused: m is damaged")]
)
def test_a_machine_that_cannot_tell_whether_it_fits_is_not_taken_for_one_where_it_does(answer: Ended):
    node = FakeNode(answer, "/opt/studiofleet/models/org/m")
    said = place(node)
    assert "is not known (--force-memory goes on)" in said
    assert said.endswith(answer.err)
    assert PASSED in place(node, force_memory=True)


def test_other_engines_are_not_measured():
    node = FakeNode(Ended(3))
    assert PASSED in place(node, WorkerConfig(id="far-1", model="org/m", node="studio-2", engine="fake"))
    assert node.asked == []
