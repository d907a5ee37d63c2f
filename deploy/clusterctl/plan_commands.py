"""The commands about the whole cluster as the configuration wants it: plan, apply."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from clusterctl import edits, journal, operations, output
from clusterctl.applying import Applying, Result
from clusterctl.desired import wanted_here, wanted_there
from clusterctl.node_placing import ADD, REMOVE, wait_until_serving
from clusterctl.observing import observe
from clusterctl.options import (
    Exit,
    config_option,
    json_option,
    places,
    reported,
    start_timeout_option,
    taught,
)
from clusterctl.planning import Action, Blocked, Machine, Plan, Verb, Wanted, plan, plan_one
from clusterctl.recovery import RESUMED, recover
from clusterctl.wire_keys import forget_worker
from protocol.addresses import Home
from protocol.api_keys import read_api_keys, refuse_open_gateways
from protocol.config import ClusterConfig
from protocol.configfile import read_config
from protocol.locks import locked

APPLY = "apply"
_REFUSED = "the configuration is wrong, or Studiofleet is not installed on a node"
_AWAY = "6 a node cannot be reached"


@click.command(
    "plan",
    epilog=taught("clusterctl plan", "clusterctl plan --json", refused=_REFUSED, also=[_AWAY]),
)
@json_option
@config_option
@reported
def plan_command(as_json: bool, config_file: Path | None) -> None:
    """Show what is to be done so that all machines run what the configuration says.

    Each machine is shown as soon as it answers. Nothing is changed; `clusterctl apply` does it.
    """
    home, path = places(config_file)
    config = read_config(path)
    _mention_interrupted(home)
    _preview(home, config, as_json=as_json)


def _preview(home: Home, config: ClusterConfig, *, as_json: bool, diff: bool = False) -> None:
    found = _look(home, config, quiet=as_json)
    planned = plan(_wanted(config), found)
    changes = _differences(config, found) if diff else {}
    if as_json:
        output.show_json(_document(planned) | ({"changes": changes} if diff else {}))
    else:
        click.echo("".join(changes.values()), nl=False)
        click.echo(_summary(planned))
    _leave(planned, [])


def _differences(config: ClusterConfig, found: Mapping[str, Machine]) -> dict[str, str]:
    """What would change in the file of each other machine that answers, where anything would."""
    changes = {
        wanted.name: edits.difference(machine.text, wanted.text, f"{wanted.name}/cluster.toml")
        for wanted in _wanted(config)
        if not (machine := found[wanted.name]).why_not and wanted.text
    }
    return {name: change for name, change in changes.items() if change}


@click.command(
    "apply",
    epilog=taught(
        "clusterctl apply",
        "clusterctl apply --dry-run",
        "clusterctl apply --wait",
        failed="nothing could be done",
        refused=_REFUSED,
        also=["5 only some of it is done", _AWAY],
    ),
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--wait", is_flag=True, help="Return when what was started serves.")
@json_option
@start_timeout_option
@config_option
@reported
def apply_command(dry_run: bool, wait: bool, as_json: bool, timeout: float, config_file: Path | None) -> None:
    """Have all machines run what the configuration says, and nothing else of ours.

    Processes that run with an older configuration are started anew once their requests are finished,
    those of one model one after another. What is as it should be is left alone. --dry-run shows, too, how
    the files of other machines would change.
    """
    home, path = places(config_file)
    if dry_run:
        _mention_interrupted(home)
        _preview(home, read_config(path), as_json=as_json, diff=True)
        return
    operations.make_folders(home)
    config = read_config(path)
    refuse_open_gateways(config.local_gateways, read_api_keys(home))
    with locked(journal.operations_folder(home) / "apply.lock"):
        recover(home, path, output.say)
        config = read_config(path)
        _take_up(home, config)
        found = _look(home, config, quiet=True)
        planned = plan(_wanted(config), found)
        results: list[Result] = []
        if planned.actions:
            with journal.operation(home, APPLY, {}) as operation:
                results = Applying(home, path, operation, output.say, timeout).carry_out(planned, found)
    if wait:
        _wait(home, config, results, timeout)
    if as_json:
        output.show_json(_document(planned, results))
    else:
        _show(planned, results)
    _leave(planned, results)


def _wanted(config: ClusterConfig) -> list[Wanted]:
    return [wanted_here(config), *(wanted_there(config, node.name) for node in config.nodes)]


def _look(home: Home, config: ClusterConfig, *, quiet: bool) -> dict[str, Machine]:
    """At all machines; each is shown when it is known."""
    wanted = {each.name: each for each in _wanted(config)}
    found: dict[str, Machine] = {}
    for machine in observe(home, config):
        found[machine.name] = machine
        if not quiet:
            for line in _lines(plan_one(wanted[machine.name], machine), machine.name):
                click.echo(line)
            sys.stdout.flush()
    return found


def _lines(planned: Plan, name: str) -> Iterable[str]:
    if planned.is_nothing:
        yield f"{name}: nothing to do"
    for action in planned.actions:
        yield f"{name}: {action.words}"
    yield from map(_why_not, planned.blocked)


def _why_not(blocked: Blocked) -> str:
    return f"{blocked.node}: {'not reached: ' if blocked.unreachable else ''}{blocked.reason}"


def _summary(planned: Plan) -> str:
    if planned.is_nothing:
        return "unchanged: everything runs as configured"
    count = f"{len(planned.actions)} to do" if planned.actions else "nothing to do"
    parts = [count, *_not_looked_at(planned)]
    return "; ".join([*parts, "to do it: clusterctl apply"] if planned.actions else parts)


def _not_looked_at(planned: Plan) -> list[str]:
    names = ", ".join(blocked.node for blocked in planned.blocked)
    return [f"not looked at: {names}"] if names else []


def _show(planned: Plan, results: list[Result]) -> None:
    for blocked in planned.blocked:
        output.say(_why_not(blocked))
    if planned.is_nothing:
        click.echo(_summary(planned))
        return
    failed = [result for result in results if result.error]
    parts = [f"{len(results) - len(failed)} done"]
    parts += [f"{len(failed)} failed"] if failed else []
    click.echo("; ".join([*parts, *_not_looked_at(planned)]))


def _document(planned: Plan, results: Iterable[Result] = ()) -> dict[str, Any]:
    outcome = {result.action: result for result in results}
    return {
        "actions": [_entry(action, outcome.get(action)) for action in planned.actions],
        "blocked": [
            {"node": b.node, "reason": b.reason, "unreachable": b.unreachable} for b in planned.blocked
        ],
    }


def _entry(action: Action, result: Result | None) -> dict[str, Any]:
    entry = {
        "verb": action.verb.word,
        "node": action.node,
        "id": action.id or None,
        "kind": action.kind.value,
        "reason": action.reason,
    }
    return entry if result is None else {**entry, "done": not result.error, "error": result.error or None}


def _leave(planned: Plan, results: list[Result]) -> None:
    """End with the exit code that says how it went."""
    failed = [result for result in results if result.error]
    if not failed and not planned.blocked:
        return
    if len(failed) < len(results):
        sys.exit(Exit.PARTLY)
    away = [*(b.unreachable for b in planned.blocked), *(result.unreachable for result in failed)]
    sys.exit(Exit.UNREACHABLE if any(away) else Exit.FAILED if failed else Exit.REFUSED)


def _mention_interrupted(home: Home) -> None:
    for entry in journal.interrupted(home):
        command = APPLY if entry.name in (ADD, REMOVE) else entry.name
        output.say(f"{entry.words} was interrupted {entry.reached}; to go on: clusterctl {command}")


def _take_up(home: Home, config: ClusterConfig) -> None:
    """What an `apply` that was cut off left to do is in the next plan, but for keys of what is gone."""
    known = {worker.id for worker in config.workers}
    for entry in journal.interrupted(home, APPLY):
        with journal.taken_up(home, entry) as operation:
            if operation is not None:
                for worker_id in {
                    step.facts["worker"] for step in entry.steps if "worker" in step.facts
                } - known:
                    forget_worker(home, worker_id)
                operation.outcome = RESUMED
                output.say(f"{entry.words} was interrupted {entry.reached}; what it left to do is done now")


def _wait(home: Home, config: ClusterConfig, results: Iterable[Result], timeout_s: float) -> None:
    for result in results:
        if result.action.verb is Verb.START and not result.error:
            wait_until_serving(home, config, result.action.id, timeout_s, output.say)


ALL = (plan_command, apply_command)
