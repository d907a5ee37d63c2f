"""Carrying out a plan: machines side by side, the processes of one model anew one after another.

Each machine is looked at again once nobody else changes it: what happened since the plan was made stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from clusterctl import draining, node_preflight, node_workers, operations
from clusterctl.desired import wanted_there
from clusterctl.journal import Operation
from clusterctl.node_lock import Held, changing
from clusterctl.node_placing import PATIENCE_S, wait_until_serving
from clusterctl.nodes import Node
from clusterctl.observing import observe_there
from clusterctl.operations import OperationError, Say
from clusterctl.planning import Action, Machine, Plan, Verb, plan_one
from clusterctl.runner import RunnerTimeoutError
from clusterctl.services import ServiceError
from clusterctl.ssh import HostUnreachableError
from clusterctl.supervision import Kind
from clusterctl.wire_keys import forget_worker
from protocol.addresses import LOCAL, AddressError, Home
from protocol.config import ClusterConfig
from protocol.configfile import read_config
from protocol.keyfiles import KeyFileError
from protocol.locks import LockHeldError

_AT_ONCE = 32
_END_S = 600.0
"""A worker that is configured no more has so long to finish what it has."""
_AWAY = (HostUnreachableError, RunnerTimeoutError)
_FAULTS = (OperationError, ServiceError, AddressError, KeyFileError, LockHeldError)


@dataclass(frozen=True)
class Result:
    """What became of an action; without an error it is done."""

    action: Action
    error: str = ""
    unreachable: bool = False


class Applying:
    """One `clusterctl apply`."""

    def __init__(self, home: Home, path: Path, operation: Operation, say: Say, start_s: float) -> None:
        self._home = home
        self._path = path
        self._operation = operation
        self._say = say
        self._start_s = start_s
        """A process that is started anew has so long to serve."""

    def carry_out(self, plan: Plan, found: Mapping[str, Machine]) -> list[Result]:
        """Do all that can be done; a result for each action. `found` is what the plan was made of."""
        there = [a for a in plan.actions if a.node != LOCAL and a.verb is not Verb.RESTART]
        new = [a for a in there if a.verb is Verb.START and a.id not in found[a.node].knows]
        here = [a for a in plan.actions if a.node == LOCAL and a.verb is not Verb.RESTART]
        results = self._on_each([a for a in there if a not in new], self._follow_there)
        results += self._try(here, partial(self._follow_here, here))
        if new:
            self._wait_for_gateways(here)
        in_the_way = {result.action.node: result for result in results if result.error}
        running = {r.action.id: r for r in results if r.error and r.action.verb is Verb.STOP}
        left = [a for a in new if a.node in in_the_way or a.id in running]
        results += [Result(a, f"not tried: {(running.get(a.id) or in_the_way[a.node]).error}") for a in left]
        results += self._on_each([a for a in new if a not in left], self._place_there)
        return results + self._restart([a for a in plan.actions if a.verb is Verb.RESTART])

    def _on_each(self, actions: Iterable[Action], work: Callable[[str, list[Action]], None]) -> list[Result]:
        """On all machines at once: a slow one holds up no other."""
        machines = _grouped(actions, lambda action: action.node)
        return _side_by_side(
            partial(self._try, its, partial(work, name, its)) for name, its in machines.items()
        )

    def _try(self, actions: list[Action], work: Callable[[], None]) -> list[Result]:
        if not actions:
            return []
        node, words = actions[0].node, "; ".join(action.words for action in actions)
        error, unreachable = "", False
        try:
            with self._operation.step(f"{node}: {words}"):
                work()
        except _AWAY as fault:
            error, unreachable = str(fault), True
        except _FAULTS as fault:
            error = str(fault)
        for action in actions:
            self._say(f"{node}: {action.words}: {f'failed: {error}' if error else 'done'}")
        return [Result(action, error, unreachable) for action in actions]

    # --- this machine ----------------------------------------------------------------------

    def _follow_here(self, actions: list[Action]) -> None:
        config = read_config(self._path)
        if not operations.follow_config(self._home, self._path, retry=True):
            operations.bring_up(self._home, self._path, config, os.environ)
        for action in actions:
            if action.verb is Verb.STOP:
                operations.wait_until_gone(self._home, config, action.id, self._say)
                self._forget(config, action)

    def _wait_for_gateways(self, started: Iterable[Action]) -> None:
        """Workers of other machines are not placed before the gateways are reached."""
        config = read_config(self._path)
        for action in started:
            if action.kind is Kind.GATEWAY and action.verb is Verb.START:
                with _faults_are_told(self._say):
                    wait_until_serving(self._home, config, action.id, self._start_s, self._say)

    def _forget(self, config: ClusterConfig, action: Action) -> None:
        """A worker that only moved has another key already, or gets one."""
        if action.kind is Kind.WORKER and all(worker.id != action.id for worker in config.workers):
            forget_worker(self._home, action.id)

    # --- other machines --------------------------------------------------------------------

    @contextmanager
    def _alone(self, name: str) -> Iterator[tuple[Held, ClusterConfig, Machine]]:
        """The machine as it is now, and what is wanted now: nobody else changes it."""
        node = Node(read_config(self._path).node_named(name), self._home)
        with changing(self._home, node, PATIENCE_S) as held:
            machine = observe_there(node)
            if machine.why_not:
                fault = HostUnreachableError if machine.unreachable else OperationError
                raise fault(machine.why_not)
            yield held, read_config(self._path), machine

    def _follow_there(self, name: str, _actions: list[Action]) -> None:
        with self._alone(name) as (held, config, machine):
            node, version = held.node, held.version
            node_workers.follow(node, version, _only(config, name, machine.knows))
            for action in plan_one(wanted_there(config, name), machine).actions:
                if action.verb is Verb.STOP:
                    node_workers.wait_until_gone(node, version, action.id, _END_S)
                    node_workers.forget_key(node, action.id)
                    self._forget(config, action)

    def _place_there(self, name: str, actions: list[Action]) -> None:
        with self._alone(name) as (held, config, machine):
            node, version, known = held.node, held.version, set(machine.knows)
            for action in actions:
                if action.id in known or action.id not in {w.id for w in config.workers_on(name)}:
                    continue
                known.add(action.id)
                there = _only(config, name, known)
                node_preflight.refuse_unfit(node, version, there, action.id, self._say)
                with node_workers.undone_on_failure(
                    self._home, node, version, there, action.id, self._operation
                ):
                    node_workers.place(self._home, node, version, there, action.id, self._operation)

    # --- anew ------------------------------------------------------------------------------

    def _restart(self, actions: list[Action]) -> list[Result]:
        """Gateways one after another, then workers: those of one model one after another."""
        config = read_config(self._path)
        models = {worker.id: worker.name for worker in config.workers}
        gateways = [action for action in actions if action.kind is Kind.GATEWAY]
        groups = _grouped((a for a in actions if a.kind is Kind.WORKER), lambda a: models.get(a.id, a.id))
        results = self._in_turn(config, gateways)
        return results + _side_by_side(partial(self._in_turn, config, its) for its in groups.values())

    def _in_turn(self, config: ClusterConfig, actions: list[Action]) -> list[Result]:
        """Until one does not come up again: the others are left as they run."""
        results: list[Result] = []
        for action in actions:
            if results and results[-1].error:
                why = f"left as it runs, since that went wrong with {results[-1].action.id}"
                results += [Result(action, why) for action in actions[len(results) :]]
                break
            results += self._try([action], partial(self._restart_one, config, action))
        return results

    def _restart_one(self, config: ClusterConfig, action: Action) -> None:
        if action.node == LOCAL:
            old = draining.restart(self._home, self._path, config, action.id, None)
        else:
            status = operations.read_status(self._home, config)
            old = next((worker.pid for worker in status.workers if worker.id == action.id), None)
            node_workers.restart(Node(config.node_named(action.node), self._home), action.id)
        limit_s = draining.restart_limit_s(config, action.id, None, self._start_s)
        wait_until_serving(self._home, config, action.id, limit_s, self._say, not_pid=old)


@contextmanager
def _faults_are_told(say: Say) -> Iterator[None]:
    try:
        yield
    except OperationError as error:
        say(f"failed: {error}")


def _only(config: ClusterConfig, name: str, ids: Iterable[str]) -> ClusterConfig:
    """With those workers of the machine alone."""
    known = set(ids)
    kept = tuple(worker for worker in config.workers if worker.node != name or worker.id in known)
    return msgspec.structs.replace(config, workers=kept)


def _grouped(actions: Iterable[Action], key: Callable[[Action], str]) -> dict[str, list[Action]]:
    groups: dict[str, list[Action]] = {}
    for action in actions:
        groups.setdefault(key(action), []).append(action)
    return groups


def _side_by_side(work: Iterable[Callable[[], list[Result]]]) -> list[Result]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = [pool.submit(each) for each in work]
        return [result for each in running for result in each.result()]
