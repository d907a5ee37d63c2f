"""Carrying out an upgrade: one node at a time, each back at its old version by itself when it goes wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from clusterctl import draining, journal, node_workers
from clusterctl.journal import Entry, Operation
from clusterctl.node_lock import changing
from clusterctl.nodes import FOLLOW_S, Node
from clusterctl.observing import NOT_INSTALLED
from clusterctl.operations import OperationError, RefusedError, Say
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.upgrade_gate import Gate
from clusterctl.upgrade_plan import Action, Running, Station, Verb, actions_to, superfluous
from protocol.addresses import Home
from protocol.configfile import read_config
from protocol.locks import LockHeldError
from protocol.states import WorkerState

UPGRADE = "upgrade"
"""In the journal: one for each node, with its old and its new version."""
TIMEOUT_S = 600.0
_PATIENCE_S = 60.0
_AWAY = (HostUnreachableError, RunnerTimeoutError)
FAULTS = (*_AWAY, OperationError, LockHeldError)


class Outcome(StrEnum):
    """What became of a node."""

    DONE = "done"
    ROLLED_BACK = "rolled back"
    STUCK = "stuck"
    """Neither the new version nor the old one could be had."""
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Result:
    """Of one node; unless it is done, why."""

    node: str
    outcome: Outcome
    error: str = ""
    unreachable: bool = False


class Upgrading:
    """One `clusterctl upgrade`, or the end of one that was interrupted."""

    def __init__(
        self,
        home: Home,
        path: Path,
        say: Say,
        timeout_s: float = TIMEOUT_S,
        *,
        keep_versions: bool = False,
    ) -> None:
        self._home = home
        self._path = path
        self._say = say
        self._timeout_s = timeout_s
        """A worker has so long to finish what it has, and again to serve."""
        self._keep_versions = keep_versions
        self._gate = Gate(home, path, say, timeout_s)

    def look(self, node: Node) -> Station:
        """At a node, and at its workers. Raises `RefusedError`, `OperationError` and what `Node` does."""
        facts = node.facts()
        if not facts.current:
            raise RefusedError(f"{node.name}: {NOT_INSTALLED}")
        workers = read_config(self._path).workers_on(node.name)
        return Station(
            node.name,
            facts.current,
            facts.versions,
            tuple(self._running(worker.id) for worker in workers),
            at_once=node.config.supervisor == "launchd",
        )

    def _running(self, worker_id: str) -> Running:
        views = list(self._gate.views(worker_id).values())
        draining = any(view.state == WorkerState.DRAINING for view in views)
        return Running(worker_id, views[0].version if views else None, draining)

    def carry_out(self, nodes: Sequence[str], version: str) -> list[Result]:
        """One after another, until one does not come up: a result for each."""
        results: list[Result] = []
        for name in nodes:
            failed = next((result.node for result in results if result.error), None)
            if failed is None:
                results.append(self._upgrade(name, version))
            else:
                results.append(Result(name, Outcome.NOT_TRIED, f"since that went wrong with {failed}"))
        return results

    def _upgrade(self, name: str, version: str) -> Result:
        node = Node(read_config(self._path).node_named(name), self._home)
        try:
            with (
                changing(self._home, node, _PATIENCE_S) as held,
                self._operation(node, version, held.version) as operation,
            ):
                return self._change(node, version, operation)
        except FAULTS as error:
            return Result(name, Outcome.NOT_TRIED, str(error), isinstance(error, _AWAY))

    @contextmanager
    def _operation(self, node: Node, version: str, was: str) -> Iterator[Operation]:
        """A new one, or the one to that version which was interrupted there. Raises `OperationError`."""
        for entry in journal.interrupted(self._home, UPGRADE):
            if entry.subject["node"] != node.name:
                continue
            if entry.subject["version"] != version:
                raise OperationError(
                    f"{node.name}: {entry.words} was interrupted, and has to be undone first"
                )
            with journal.taken_up(self._home, entry) as operation:
                if operation is None:
                    raise OperationError(f"{node.name}: another command goes on with {entry.words}")
                self._say(f"{entry.words} was interrupted {entry.reached}; it goes on")
                yield operation
            return
        subject = {"node": node.name, "version": version, "was": was}
        with journal.operation(self._home, UPGRADE, subject) as operation:
            yield operation

    def _change(self, node: Node, version: str, operation: Operation) -> Result:
        try:
            self._bring_to(version, node, operation)
        except FAULTS as fault:
            error, was = str(fault), operation.entry.subject["was"]
        except BaseException:
            operation.leave_open()
            raise
        else:
            self._prune(node, operation.entry.subject["was"])
            return Result(node.name, Outcome.DONE)
        self._say(f"{node.name}: failed: {error}; it is brought back to {was}")
        try:
            self.roll_back(node, operation)
        except FAULTS as fault:
            operation.leave_open()
            again = f"{node.name} cannot be brought back to {was} now, the next command tries again: {fault}"
            return Result(node.name, Outcome.STUCK, f"{error}; {again}", isinstance(fault, _AWAY))
        except BaseException:
            operation.leave_open()
            raise
        operation.outcome = Outcome.ROLLED_BACK
        return Result(node.name, Outcome.ROLLED_BACK, error)

    def _prune(self, node: Node, was: str) -> None:
        """What cannot be removed is no failure of the upgrade; the next one tries again."""
        try:
            old = [] if self._keep_versions else superfluous(self.look(node), was)
            removed = node.prune(old) if old else []
        except FAULTS as error:
            self._say(f"{node.name}: {error}")
            return
        if removed:
            self._say(f"{node.name}: removed what is not used any more: {', '.join(removed)}")

    def roll_back(self, node: Node, operation: Operation) -> None:
        """Have the node, which nobody else changes, as it was. Raises what `FAULTS` has."""
        self._bring_to(operation.entry.subject["was"], node, operation)

    def _bring_to(self, version: str, node: Node, operation: Operation) -> None:
        for action in actions_to(version, self.look(node), touched(operation.entry)):
            self._say(f"{node.name}: {action.words}")
            with operation.step(action.verb, **({"worker": action.id} if action.id else {})):
                self._perform(action, node)

    def _perform(self, action: Action, node: Node) -> None:
        config = read_config(self._path)
        match action.verb:
            case Verb.DRAIN:
                draining.drain(self._home, config, action.id, None)
                draining.wait_until_drained(self._home, config, action.id, self._timeout_s, self._say)
            case Verb.SWITCH:
                self._switch(node, action.version)
            case Verb.RESTART:
                if not self._gate.runs(action.id, action.version):  # the switch may have started it
                    node_workers.restart(node, action.id)
            case Verb.GATE:
                self._say(f"{node.name}: {self._gate.passed(node, action.id, action.version)}")
            case Verb.UNDRAIN:
                draining.undrain(self._home, config, action.id)
            case _:
                assert_never(action.verb)

    def _switch(self, node: Node, version: str) -> None:
        """What the node was told to run stays as it is."""
        node.use(version)
        workers = read_config(self._path).workers_on(node.name)
        if workers and node.runner.run(["test", "-f", str(node.config_file)]).code == 0:
            ended = node.clusterctl(version, ["up"], FOLLOW_S)
            if ended.code != 0:
                raise OperationError(f"clusterctl up of {version} failed there: {ended.words}")


def touched(entry: Entry) -> set[str]:
    """The workers with which something was begun."""
    return {step.facts["worker"] for step in entry.steps if "worker" in step.facts}
