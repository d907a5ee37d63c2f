"""The command that brings nodes to another version: `clusterctl upgrade`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from clusterctl import journal, operations, output
from clusterctl.admin import read_states
from clusterctl.node_helper import install_helper
from clusterctl.node_lock import changing
from clusterctl.nodes import Node, place_version
from clusterctl.operations import RefusedError
from clusterctl.options import Exit, config_option, json_option, places, reported, taught
from clusterctl.recovery import recover
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.upgrade_plan import Action, Station, actions_to, in_order
from clusterctl.upgrading import FAULTS, TIMEOUT_S, UPGRADE, Outcome, Result, Upgrading, touched
from clusterctl.wheelhouse import Wheelhouse, read_wheelhouse
from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.configfile import read_config
from protocol.locks import locked

T = TypeVar("T")

_AT_ONCE = 16
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class _Target:
    """What is wanted."""

    version: str
    wheelhouse: Wheelhouse | None
    """None: it is there already."""


@dataclass(frozen=True)
class _Fault:
    """Why a node is not looked at, or was not given the version."""

    reason: str
    code: Exit


@click.command(
    "upgrade",
    epilog=taught(
        "clusterctl upgrade --wheelhouse wheels --canary studio-2",
        "clusterctl upgrade studio-2 studio-3 --dry-run",
        "clusterctl upgrade --version 0.4.1-5f0e9c1d",
        failed="nothing could be done",
        refused="there are no such wheels or nodes, or a node is not fit",
        also=[
            "4 a node did not come up with it and is as it was, as are all",
            "5 some nodes have it, or one has neither",
            "6 a node cannot be reached",
            "130 interrupted: the next upgrade goes on, another command that changes nodes undoes it",
        ],
    ),
)
@click.argument("names", metavar="[NODE]...", nargs=-1)
@click.option("--version", help="One that the nodes have already, as to go back.  [default: of the wheels]")
@click.option(
    "--wheelhouse",
    "wheels",
    type=click.Path(file_okay=False, path_type=Path),
    help="Made by scripts/wheelhouse.  [default: wheelhouse in STUDIOFLEET_HOME]",
)
@click.option("--canary", default="", help="The node that goes first.  [default: as configured]")
@click.option("--ask-sudo", is_flag=True, help="Let sudo there ask for its password: launchd, if need be.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds for a worker to finish what it has, and again to serve.",
)
@click.option("--keep-versions", is_flag=True, help="Leave older versions there than the one before.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@json_option
@config_option
@reported
def upgrade(
    names: tuple[str, ...],
    config_file: Path | None,
    dry_run: bool,
    as_json: bool,
    timeout: float,
    **given: Any,
) -> None:
    """Bring nodes (all, unless some are named) to another version, without losing a request.

    The version is installed on all of them first. Then, one node after another and one worker after another:
    it finishes what it has, starts anew, and has to generate a token. A node where that fails is brought
    back to its old version, and no further one is tried; those before it keep the new one.
    Of older versions, a node keeps the one before.
    """
    home, path = places(config_file)
    config = read_config(path)
    names = tuple(dict.fromkeys(names)) or tuple(node.name for node in config.nodes)
    _refuse_wrong_names(config, names, given["canary"])
    target = _target(home, given["version"], given["wheels"])
    operations.make_folders(home)
    with locked(journal.operations_folder(home) / "apply.lock"):
        left = {
            entry.subject["node"]: entry
            for entry in journal.interrupted(home, UPGRADE)
            if entry.subject["version"] == target.version and entry.subject["node"] in names
        }
        if not dry_run:
            recover(home, path, output.say, names, but=list(left.values()))
        upgrading = Upgrading(home, path, output.say, timeout, keep_versions=given["keep_versions"])
        found = _on_all(home, path, names, upgrading.look)
        stations = in_order((s for s in found.values() if isinstance(s, Station)), given["canary"], left)
        plan = {
            station.name: actions_to(
                target.version, station, touched(left[station.name]) if station.name in left else ()
            )
            for station in stations
        }
        _leave_if_faulty(found)
        _refuse_what_cannot_be(home, config, target, stations, plan)
        results: list[Result] = []
        if not dry_run:
            _place(home, path, target, stations, ask_sudo=given["ask_sudo"])
            results = upgrading.carry_out([n for n in plan if plan[n] or n in left], target.version)
    if as_json:
        output.show_json(_document(target, stations, plan, results))
    else:
        _show(target, stations, plan, results)
    sys.exit(exit_code(results))


def _refuse_wrong_names(config: ClusterConfig, names: Sequence[str], canary: str) -> None:
    """Raises `RefusedError`, and `ConfigError` for a node that is not there."""
    for name in names:
        config.node_named(name)
    if not names:
        raise RefusedError("there are no nodes; to add one: clusterctl node add")
    if canary and canary not in names:
        raise RefusedError(f"the canary {canary} is none of the nodes: {', '.join(names)}")


def _target(home: Home, version: str | None, wheels: Path | None) -> _Target:
    """Raises `RefusedError` where the wheels are of another version than is asked for."""
    if version is not None and wheels is None:
        return _Target(version, None)
    wheelhouse = read_wheelhouse(wheels or home.path / "wheelhouse")
    if version not in (None, wheelhouse.version):
        raise RefusedError(f"the wheels in {wheelhouse.folder} are of {wheelhouse.version}, not of {version}")
    return _Target(wheelhouse.version, wheelhouse)


def _on_all(home: Home, path: Path, names: Iterable[str], work: Callable[[Node], T]) -> dict[str, T | _Fault]:
    """What comes of all nodes, side by side."""
    config = read_config(path)

    def one(name: str) -> T | _Fault:
        try:
            return work(Node(config.node_named(name), home))
        except (HostUnreachableError, RunnerTimeoutError) as error:
            return _Fault(str(error), Exit.UNREACHABLE)
        except FAULTS as error:
            return _Fault(str(error), Exit.REFUSED if isinstance(error, RefusedError) else Exit.FAILED)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {name: pool.submit(one, name) for name in names}
        return {name: answer.result() for name, answer in asked.items()}


def _leave_if_faulty(found: Mapping[str, object]) -> None:
    """Before anything runs otherwise than it did."""
    faults = {name: it for name, it in found.items() if isinstance(it, _Fault)}
    for fault in faults.values():
        output.say(f"failed: {fault.reason}")
    if faults:
        output.say(f"nothing was changed; to leave out {', '.join(faults)}, name the others")
        sys.exit(max(fault.code for fault in faults.values()))


def _refuse_what_cannot_be(
    home: Home,
    config: ClusterConfig,
    target: _Target,
    stations: Iterable[Station],
    plan: Mapping[str, Sequence[Action]],
) -> None:
    """Raises `RefusedError`."""
    missing = [station.name for station in stations if target.version not in station.versions]
    if missing and target.wheelhouse is None:
        raise RefusedError(
            f"{', '.join(missing)} has no version {target.version}; give its wheels: --wheelhouse"
        )
    if any(config.workers_on(name) for name in plan if plan[name]) and not read_states(home, config):
        raise RefusedError(
            "no gateway runs, so that no worker could show that it serves; first: clusterctl up"
        )


def _place(home: Home, path: Path, target: _Target, stations: Iterable[Station], *, ask_sudo: bool) -> None:
    """Have the version on all nodes, and used by none."""
    wheelhouse = target.wheelhouse

    def place(node: Node) -> None:
        if wheelhouse is not None:
            with changing(home, node, _PATIENCE_S):
                place_version(node, node.facts(), wheelhouse, output.say)

    missing = [station.name for station in stations if target.version not in station.versions]
    _leave_if_faulty(_on_all(home, path, missing, place))
    for station in stations:
        if station.at_once:
            node = Node(read_config(path).node_named(station.name), home)
            install_helper(node, target.version, ask_sudo=ask_sudo)


def _lines(target: _Target, station: Station, actions: Iterable[Action]) -> Iterable[str]:
    if target.version not in station.versions:
        yield f"{target.version} is installed"
    yield from (action.words for action in actions)


def _show(
    target: _Target,
    stations: Sequence[Station],
    plan: Mapping[str, Sequence[Action]],
    results: Sequence[Result],
) -> None:
    for result in results:
        click.echo(f"{result.node}: {result.outcome}{f': {result.error}' if result.error else ''}")
    if results:
        return
    lines = [f"{s.name}: {line}" for s in stations for line in _lines(target, s, plan[s.name])]
    for line in lines or [f"unchanged: all have {target.version}"]:
        click.echo(line)


def _document(
    target: _Target,
    stations: Sequence[Station],
    plan: Mapping[str, Sequence[Action]],
    results: Iterable[Result],
) -> dict[str, Any]:
    outcome = {result.node: result for result in results}

    def node(station: Station) -> dict[str, Any]:
        result = outcome.get(station.name)
        return {
            "name": station.name,
            "current": station.current,
            "installed": target.version in station.versions,
            "actions": [{"verb": a.verb, "worker": a.id or None} for a in plan[station.name]],
            "outcome": result.outcome if result else None,
            "error": (result.error or None) if result else None,
        }

    return {"version": target.version, "nodes": [node(station) for station in stations]}


def exit_code(results: Sequence[Result]) -> Exit:
    """What the command says of all of them."""
    outcomes = {result.outcome for result in results}
    if outcomes <= {Outcome.DONE}:
        return Exit.DONE
    if outcomes & {Outcome.DONE, Outcome.STUCK}:
        return Exit.PARTLY
    if Outcome.ROLLED_BACK in outcomes:
        return Exit.ROLLED_BACK
    return Exit.UNREACHABLE if any(result.unreachable for result in results) else Exit.FAILED


ALL = (upgrade,)
