"""The commands of daily operation: drain, undrain, restart, logs, completion."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from clusterctl import draining, output
from clusterctl.live import looked_at
from clusterctl.logs import Choice, Entry, TimeError, merged, moment
from clusterctl.operations import RefusedError
from clusterctl.options import config_option, going_on, json_option, places, reported, taught
from clusterctl.tails import Tail, ids_in
from protocol.addresses import LOCAL
from protocol.config import ClusterConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config

_LINES = 100
_LOOK_S = 0.25
_START_S = 600.0
_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def complete_ids(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """For the shell: ids from the configuration; a shell that completes is no place to complain."""
    with contextlib.suppress(ConfigError, OSError):
        config = read_config(places(context.params.get("config_file"))[1])
        return [CompletionItem(name) for name in _ids(config) if name.startswith(begun)]
    return []


def _ids(config: ClusterConfig) -> list[str]:
    return [*(gateway.id for gateway in config.all_gateways), *(worker.id for worker in config.workers)]


_id_argument = click.argument("process_id", metavar="ID", shell_complete=complete_ids)
_drain_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    help="Seconds after which requests that still run are given up.",
)


@click.command(
    epilog=taught(
        "clusterctl drain smol-1",
        "clusterctl drain smol-1 --timeout 30 --no-wait",
        failed="it is not connected, or took requests again meanwhile",
        refused="there is no such worker",
        also=["130 interrupted: it goes on draining"],
    )
)
@_id_argument
@_drain_option
@click.option("--wait/--no-wait", default=True, help="Return when nothing runs in it.  [default: wait]")
@config_option
@reported
def drain(process_id: str, timeout: float | None, wait: bool, config_file: Path | None) -> None:
    """Let a worker finish what it has and take nothing new, until `undrain`.

    The process goes on, with its model loaded. A restart of the process ends the drain, too.
    """
    home, path = places(config_file)
    config = read_config(path)
    worker = config.worker_named(process_id)
    changed = draining.drain(home, config, worker.id, timeout)
    if wait:
        with going_on(f"{worker.id} goes on draining; to end that: clusterctl undrain {worker.id}"):
            draining.wait_until_drained(home, config, worker.id, timeout, output.say)
    known = "takes no requests" if changed else "takes no requests already"
    click.echo(
        f"{'' if changed else 'unchanged: '}{worker.id} {known}; to end that: clusterctl undrain {worker.id}"
    )


@click.command(
    epilog=taught(
        "clusterctl undrain smol-1", failed="it is not connected", refused="there is no such worker"
    )
)
@_id_argument
@config_option
@reported
def undrain(process_id: str, config_file: Path | None) -> None:
    """Let a drained worker take requests again."""
    home, path = places(config_file)
    config = read_config(path)
    worker = config.worker_named(process_id)
    if draining.undrain(home, config, worker.id):
        click.echo(f"{worker.id} takes requests again")
    else:
        click.echo(f"unchanged: {worker.id} takes requests")


@click.command(
    epilog=taught(
        "clusterctl restart smol-1 --wait",
        "clusterctl restart gw-1",
        failed="no supervisor runs, or with --wait: it never serves",
        refused="there is no such process, or a gateway could not start again with its files",
        also=["130 interrupted: it goes on restarting"],
    )
)
@_id_argument
@_drain_option
@click.option("--wait", is_flag=True, help="Return when it serves again.")
@config_option
@reported
def restart(process_id: str, timeout: float | None, wait: bool, config_file: Path | None) -> None:
    """Start a process anew, with the present configuration, once its requests are finished.

    Requests wait in the gateway's queue meanwhile, or go to other workers. What is parked, stopped
    or failed is started at once.
    """
    home, path = places(config_file)
    config = read_config(path)
    if process_id not in _ids(config):
        raise RefusedError(f"there is no process {process_id!r}; configured: {', '.join(_ids(config))}")
    _refuse_elsewhere(config, [process_id], "restart")
    old_pid = draining.restart(home, path, config, process_id, timeout)
    if wait:
        limit_s = draining.restart_limit_s(config, process_id, timeout, _START_S)
        with going_on(f"{process_id} goes on restarting; to look: clusterctl status"):
            draining.wait_until_serving(home, config, process_id, limit_s, output.say, not_pid=old_pid)
        click.echo(f"{process_id} serves again")
    elif old_pid is None:
        click.echo(f"{process_id} is starting")
    else:
        click.echo(f"{process_id} starts anew once its requests are finished")


@click.command(
    epilog=taught(
        "clusterctl logs smol-1 -f",
        "clusterctl logs --since 10m",
        "clusterctl logs --request req-0123456789abcdef01234567",
        refused="there is no log of that id",
    )
)
@click.argument("process_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_ids)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@click.option("--since", help="10m, 2h or 1d ago, or a local date and time.")
@click.option("--request", "request_id", metavar="ID", help="Only what concerns this request.")
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    help=f"The last so many entries.  [default: {_LINES}; all with --since or --request]",
)
@json_option
@config_option
@reported
def logs(
    process_ids: tuple[str, ...], follow: bool, as_json: bool, config_file: Path | None, **chosen: Any
) -> None:
    """Show the logs of gateways, workers and the supervisor, merged by time."""
    home, path = places(config_file)
    there = ids_in(home.logs)
    if unknown := [process_id for process_id in process_ids if process_id not in there]:
        config = read_config(path)
        _refuse_elsewhere(config, unknown, "logs")
        known = there or _ids(config)
        raise RefusedError(f"there is no log of {', '.join(unknown)}; known are: {', '.join(known)}")
    choice = Choice(_moment(chosen["since"]), chosen["request_id"])
    last = chosen["lines"]
    if last is None and choice == Choice():
        last = _LINES
    show = output.show_entries_as_json if as_json else output.show_entries
    tails = [Tail(home.logs, process_id) for process_id in process_ids or there]
    with looked_at():
        try:
            entries = iter(merged([tail.history(choice.since) for tail in tails], choice, last))
            first = next(entries, None)
            if first is not None:
                show(itertools.chain([first], entries))
            elif not follow and last != 0:
                output.say(_nothing_found(choice))
            if choice.request is not None:
                _mention_nodes(path, choice.request)
            while follow:
                sys.stdout.flush()
                time.sleep(_LOOK_S)
                if not process_ids:
                    known_ids = {tail.id for tail in tails}
                    tails += [Tail(home.logs, new) for new in ids_in(home.logs) if new not in known_ids]
                show(_sorted(merged([tail.news() for tail in tails], choice, None)))
        finally:
            for tail in tails:
                tail.close()


def _refuse_elsewhere(config: ClusterConfig, process_ids: Iterable[str], command: str) -> None:
    """Raises `RefusedError` for a worker of another machine, which does it there."""
    for worker in config.workers:
        if worker.id in process_ids and worker.node != LOCAL:
            raise RefusedError(
                f"{worker.id} runs on {worker.node}; for that: clusterctl node run {worker.node} {command}"
                f" {worker.id}"
            )


def _mention_nodes(config_file: Path, request_id: str) -> None:
    """The logs of other machines are there."""
    with contextlib.suppress(ConfigError):
        config = read_config(config_file)
        for node in config.nodes:
            if config.workers_on(node.name):
                output.say(
                    f"for workers of {node.name}: clusterctl node run {node.name} logs --request {request_id}"
                )


def _sorted(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.time)


def _nothing_found(choice: Choice) -> str:
    """What to say instead of nothing at all."""
    since = f" since {choice.since:%Y-%m-%d %H:%M:%S}" if choice.since else ""
    if choice.request is not None:
        return f"no log names a request {choice.request}{since}; its id is the x-request-id of its answer"
    return f"nothing was logged{since or ' yet'}"


def _moment(since: str | None) -> datetime | None:
    if since is None:
        return None
    try:
        return moment(since, datetime.now())
    except TimeError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error


@click.command(epilog=taught("clusterctl completion bash"))
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> None:
    """Print a script that teaches your shell to complete clusterctl's commands and ids.

    \b
    bash:  eval "$(clusterctl completion bash)"    in ~/.bashrc
    zsh:   eval "$(clusterctl completion zsh)"     in ~/.zshrc, after compinit
    fish:  clusterctl completion fish | source     in ~/.config/fish/config.fish
    """
    root = click.get_current_context().find_root().command
    click.echo(_SHELLS[shell](root, {}, "clusterctl", "_CLUSTERCTL_COMPLETE").source())


ALL = (drain, undrain, restart, logs, completion)
