"""How a node gets from one version to another, or back: what is there in, ordered actions out. Pure.

One worker after another: it finishes what it has, starts anew, and has to answer before the next one's
turn. The installation is switched once the first has nothing in hand. launchd starts all workers of a node
anew when it is told of another installation: there, all of them finish first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """What is done with a node, or with one of its workers."""

    DRAIN = "drain"
    SWITCH = "switch"
    RESTART = "restart"
    GATE = "gate"
    """It has to generate a token."""
    UNDRAIN = "undrain"


_WORDS = {
    Verb.DRAIN: "{id} finishes what it has",
    Verb.SWITCH: "{version} is used from now on",
    Verb.RESTART: "{id} starts anew",
    Verb.GATE: "{id} generates a token",
    Verb.UNDRAIN: "{id} takes requests again",
}


@dataclass(frozen=True)
class Running:
    """A worker that a node has to run."""

    id: str
    version: str | None
    """Of the process; None: no gateway is connected to one."""
    draining: bool = False


@dataclass(frozen=True)
class Station:
    """A node as it was found."""

    name: str
    current: str
    """The version that is used."""
    versions: tuple[str, ...]
    """All that are there."""
    workers: tuple[Running, ...] = ()
    at_once: bool = False
    """Whether all its workers start anew with the switch."""


@dataclass(frozen=True)
class Action:
    """One thing to do."""

    verb: Verb
    node: str
    version: str
    id: str = ""
    """Of the worker; empty: it is about the node."""

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self.verb].format(id=self.id, version=self.version)


def in_order(stations: Iterable[Station], canary: str, resumed: Iterable[str] = ()) -> list[Station]:
    """What an earlier command left in the middle first, then the canary, then the others as they come."""
    left = set(resumed)
    return sorted(stations, key=lambda station: (station.name not in left, station.name != canary))


def actions_to(version: str, station: Station, touched: Iterable[str] = ()) -> list[Action]:
    """What brings a node to that version, which is there; nothing when it and its workers have it.

    `touched` are workers with which something was begun already: they are made sure of. A worker that no
    gateway is connected to was down before; it is started with the node's version, and not waited for.
    """
    begun = set(touched)
    stale = [w for w in station.workers if _is_stale(w, version, known=w.id in begun)]
    kept = [w for w in station.workers if w not in stale and w.id in begun]

    def action(verb: Verb, worker: Running | None = None) -> Action:
        return Action(verb, station.name, version, worker.id if worker else "")

    drains = [[action(Verb.DRAIN, worker)] if worker.version else [] for worker in stale]
    gates = [action(Verb.GATE, worker) for worker in stale]
    restarts = [] if station.at_once else [action(Verb.RESTART, worker) for worker in stale]
    switches = [action(Verb.SWITCH)] if stale or station.current != version else []
    actions = [action(Verb.UNDRAIN, worker) for worker in kept if worker.draining]
    actions += [action(Verb.GATE, worker) for worker in kept]
    if station.at_once:
        return [*actions, *_flat(drains), *switches, *gates]
    for number, (drain, restart, gate) in enumerate(zip(drains, restarts, gates, strict=True)):
        actions += [*drain, *([] if number else switches), restart, gate]
    return actions if stale else [*actions, *switches]


def superfluous(station: Station, was: str) -> list[str]:
    """The versions that go after an upgrade: all but the one that is used, the one before, and what runs."""
    kept = {station.current, was, *(worker.version for worker in station.workers)}
    return [version for version in station.versions if version not in kept]


def _is_stale(worker: Running, version: str, *, known: bool) -> bool:
    return known if worker.version is None else worker.version != version


def _flat(lists: Sequence[Sequence[Action]]) -> list[Action]:
    return [action for each in lists for action in each]
