"""How a plan is carried out: in which order, and what is left when something goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterctl import journal
from clusterctl.applying import Applying
from clusterctl.operations import OperationError
from clusterctl.planning import Action, Machine, Plan, Verb
from clusterctl.ssh import HostUnreachableError
from clusterctl.supervision import Kind
from protocol.addresses import Home
from protocol.config import ClusterConfig

WORKER = '[[workers]]\nid = "{}"\nmodel = "{}"\nengine = "fake"\n'


class Recorded(Applying):
    """Does nothing but to remember, and to fail where it is told."""

    faults: Mapping[str, Exception]
    done: list[str]

    def _one(self, name: str) -> None:
        self.done.append(name)
        if name in self.faults:
            raise self.faults[name]

    def _follow_there(self, name: str, _actions: list[Action]) -> None:
        self._one(f"follow {name}")

    def _place_there(self, name: str, _actions: list[Action]) -> None:
        self._one(f"place {name}")

    def _follow_here(self, _actions: list[Action]) -> None:
        self._one("follow here")

    def _restart_one(self, _config: ClusterConfig, action: Action) -> None:
        self._one(f"restart {action.id}")


@pytest.fixture
def applied(tmp_path: Path):
    def carry_out(*actions: Action, **faults: Exception) -> tuple[list[str], dict[str, str]]:
        home = Home(tmp_path / "home")
        config = tmp_path / "cluster.toml"
        workers = "".join(WORKER.format(name, "one" if name in "ab" else name) for name in "abcx")
        config.write_text(f'version = 1\n[gateway]\nid = "gw"\nhttp = "127.0.0.1:0"\n{workers}')
        with journal.operation(home, "apply", {}) as operation:
            it = Recorded(home, config, operation, lambda line: None, 1.0)
            it.faults, it.done = {name.replace("_", " "): fault for name, fault in faults.items()}, []
            found = {name: Machine(name) for name in ("local", "m2", "m3")}
            results = it.carry_out(Plan(actions), found)
        assert len(results) == len(actions)
        return it.done, {f"{r.action.verb.word} {r.action.id}": r.error for r in results if r.error}

    return carry_out


def action(verb: Verb, node: str, name: str, kind: Kind = Kind.WORKER) -> Action:
    return Action(verb, node, name, "why", kind)


def test_what_ends_there_comes_before_what_starts_here_and_there(applied):
    done, failed = applied(
        action(Verb.STOP, "m2", "x"), action(Verb.START, "local", "a"), action(Verb.START, "m3", "x")
    )
    assert done == ["follow m2", "follow here", "place m3"]
    assert failed == {}


def test_a_machine_that_goes_away_fails_its_own_actions_only(applied):
    done, failed = applied(
        action(Verb.STOP, "m2", "b"),
        action(Verb.START, "m2", "c"),
        action(Verb.START, "m3", "a"),
        follow_m2=HostUnreachableError("away"),
    )
    assert done == ["follow m2", "place m3"]
    assert failed == {"stop b": "away", "start c": "not tried: away"}


def test_a_worker_that_may_still_run_there_is_not_started_elsewhere(applied):
    done, failed = applied(
        action(Verb.STOP, "m2", "x"), action(Verb.START, "m3", "x"), follow_m2=OperationError("it hangs")
    )
    assert done == ["follow m2"]
    assert failed["start x"] == "not tried: it hangs"


def test_gateways_come_anew_first_and_workers_of_a_model_until_one_fails(applied):
    done, failed = applied(
        action(Verb.RESTART, "local", "a"),
        action(Verb.RESTART, "local", "gw", Kind.GATEWAY),
        action(Verb.RESTART, "local", "b"),
        action(Verb.RESTART, "local", "c"),
        restart_a=OperationError("it does not come up"),
    )
    assert done[0] == "restart gw"
    assert sorted(done[1:]) == ["restart a", "restart c"]
    assert failed == {
        "restart a": "it does not come up",
        "restart b": "left as it runs, since that went wrong with a",
    }
