"""What is to be done so that each machine runs what the configuration says: two values in, actions out. Pure.

Order matters: all that ends comes first, everywhere (a worker may have moved to another machine), then
what is told, started, and at last started anew; this machine, with its gateways, before the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from clusterctl.supervision import Kind, Spec
from protocol.states import WorkerState

_DOWN = (WorkerState.STOPPED, WorkerState.PARKED)
"""Nobody starts these by themselves."""


class Verb(IntEnum):
    """What is done with a process, or with a machine, in the order in which it is done."""

    STOP = 1
    TELL = 2
    START = 3
    RESTART = 4

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Wanted:
    """What one machine is to run."""

    name: str
    told: str
    """A digest of all that it has to know."""
    specs: tuple[Spec, ...] = ()
    text: str = ""
    """What it is told with, where it is another machine."""


@dataclass(frozen=True)
class Seen:
    """One process that a machine has."""

    id: str
    state: str
    """A word of `WorkerState`."""
    digest: str | None = None
    """Of what it was started with; None: nobody knows, so it is taken for the present one."""
    last_error: str = ""
    kind: Kind = Kind.WORKER

    @property
    def is_down(self) -> bool:
        return self.state in _DOWN


@dataclass(frozen=True)
class Machine:
    """One machine as it was found."""

    name: str
    told: str | None = None
    """The digest of what it was told last; None: nobody knows. Empty: nothing."""
    processes: tuple[Seen, ...] = ()
    supervised: bool = True
    """Whether something there starts and ends processes."""
    version: str = ""
    """The installed one of another machine."""
    knows: frozenset[str] = frozenset()
    """The ids that another machine was told to run; their keys are there."""
    why_not: str = ""
    """Why nothing can be done there, and what to do."""
    unreachable: bool = False
    """That is because nobody answers."""
    text: str = ""
    """What another machine was told with."""


@dataclass(frozen=True)
class Action:
    """One thing to do."""

    verb: Verb
    node: str
    id: str
    """Of the process; empty when the machine itself is meant."""
    reason: str
    kind: Kind = Kind.WORKER

    @property
    def words(self) -> str:
        """For people, without the machine."""
        return f"{self.verb.word}{f' {self.id}' if self.id else ''}: {self.reason}"


@dataclass(frozen=True)
class Blocked:
    """A machine where nothing can be done now."""

    node: str
    reason: str
    unreachable: bool


@dataclass(frozen=True)
class Plan:
    """What is to be done, in order, and where nothing can be."""

    actions: tuple[Action, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not self.actions and not self.blocked


def plan(wanted: Sequence[Wanted], found: Mapping[str, Machine]) -> Plan:
    """For all machines; `found` has each by its name."""
    parts = [plan_one(each, found[each.name]) for each in wanted]
    actions = [action for part in parts for action in part.actions]
    return Plan(
        tuple(sorted(actions, key=lambda action: action.verb)),  # sorted() keeps the order of machines
        tuple(blocked for part in parts for blocked in part.blocked),
    )


def plan_one(wanted: Wanted, machine: Machine) -> Plan:
    """For one machine, whatever becomes of the others."""
    if machine.why_not:
        return Plan(blocked=(Blocked(machine.name, machine.why_not, machine.unreachable),))
    seen = {process.id: process for process in machine.processes}
    ids = {spec.id for spec in wanted.specs}
    actions = [
        Action(Verb.STOP, machine.name, process.id, "it is not configured there", process.kind)
        for process in machine.processes
        if process.id not in ids
    ]
    for spec in wanted.specs:
        actions += _follow(spec, seen.get(spec.id), machine)
    told_by_others = any(action.verb in (Verb.STOP, Verb.START) for action in actions)
    if wanted.specs and machine.told not in (None, wanted.told) and not told_by_others:
        older = "what it knows of the configuration is older"
        actions.append(Action(Verb.TELL, machine.name, "", older))
    return Plan(tuple(sorted(actions, key=lambda action: action.verb)))


def _follow(spec: Spec, seen: Seen | None, machine: Machine) -> list[Action]:
    def action(verb: Verb, reason: str) -> list[Action]:
        return [Action(verb, machine.name, spec.id, reason, spec.kind)]

    if seen is None:
        return action(Verb.START, "it does not run")
    if seen.is_down:
        error = f": {seen.last_error}" if seen.last_error else ""
        return action(Verb.START, f"it is {seen.state}{error}")
    if not machine.supervised:
        anew = seen.digest not in (None, spec.digest)
        adopted = action(Verb.START, "it runs, and nothing is there to start it again")
        return adopted + (action(Verb.RESTART, "its configuration has changed") if anew else [])
    if seen.digest in (None, spec.digest):
        return []
    return action(Verb.RESTART, "its configuration has changed")
