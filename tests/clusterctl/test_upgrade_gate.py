"""What a worker has to show before the next one's turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl import node_workers, upgrade_gate
from clusterctl.admin import ActionError, WorkerView
from clusterctl.asking import Answered
from clusterctl.node_workers import Witness
from clusterctl.nodes import Node
from clusterctl.operations import OperationError
from clusterctl.upgrade_gate import Gate
from protocol.addresses import Home
from protocol.config import NodeConfig

CONFIG = """
version = 1
[gateway]
id = "gw-0"
http = "127.0.0.1:0"
[[workers]]
id = "w"
model = "m"
engine = "fake"
"""
OLD = WorkerView(id="w", version="1-old", state="ready", pid=1)
LOADING = WorkerView(id="w", version="1-new", state="loading", pid=2)
READY = WorkerView(id="w", version="1-new", state="ready", pid=2)


class Scripted(Gate):
    """Sees one thing after another, and at last the same for ever: a view for each of two gateways."""

    def __init__(self, folder: Path, timeout_s: float, *seen: tuple[WorkerView, ...]) -> None:
        path = folder / "cluster.toml"
        path.write_text(CONFIG)
        super().__init__(Home(folder), path, lambda _line: None, timeout_s)
        self.seen = list(seen)

    def views(self, worker_id: str) -> dict[str, WorkerView]:
        views = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        return {f"gw-{number}": view for number, view in enumerate(views)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(NodeConfig(name="studio-2", host="127.0.0.1"), Home(tmp_path))


def test_the_process_that_is_about_to_end_is_not_asked(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
):
    gate = Scripted(tmp_path, 60, (OLD, OLD), (), (READY, OLD), (READY, LOADING), (READY, READY))
    asked: list[object] = []

    def answer(_home: Home, gateway_id: str, model: str, _limit_s: float, *, only: str) -> Answered:
        asked.append((gateway_id, model, only, len(gate.seen)))
        return Answered(text="a", worker_id=only)

    monkeypatch.setattr(upgrade_gate, "ask_model", answer)
    assert gate.passed(node, "w", "1-new").startswith("w answers: 'a' (")
    assert asked == [("gw-0", "m", "w", 1)]


def test_one_that_is_ready_and_does_not_answer_fails(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_args: object, **_more: object) -> Answered:
        raise ActionError("the gateway gw-1 refuses (502): broken")

    monkeypatch.setattr(upgrade_gate, "ask_model", refuse)
    with pytest.raises(OperationError, match=r"w is ready, but gives no answer: .*broken"):
        Scripted(tmp_path, 60, (READY,)).passed(node, "w", "1-new")


@pytest.mark.parametrize(
    ("seen", "words"), [((LOADING,), "loading with 1-new"), ((), "connected to no gateway")]
)
def test_one_that_does_not_serve_in_time_fails(
    tmp_path: Path, node: Node, seen: tuple[WorkerView, ...], words: str
):
    with pytest.raises(OperationError, match=rf"w does not serve after 0.01 s \({words}\)"):
        Scripted(tmp_path, 0.01, seen).passed(node, "w", "1-new")


def test_one_that_its_node_gave_up_is_not_waited_for(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
):
    given_up = Witness("w", "parked", last_error="exit code 9")
    monkeypatch.setattr(upgrade_gate, "_ASK_THERE_S", 0.0)
    monkeypatch.setattr(node_workers, "witnesses", lambda *_args: (given_up,))
    with pytest.raises(OperationError, match="w does not come up: exit code 9"):
        Scripted(tmp_path, 60, ()).passed(node, "w", "1-new")
