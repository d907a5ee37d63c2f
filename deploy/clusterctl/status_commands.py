"""The commands that show how the cluster is: status and top."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console, RenderableType

from clusterctl import admin, live, operations, output
from clusterctl.node_status import with_witnesses
from clusterctl.options import config_option, json_option, places, reported, taught
from clusterctl.status import ClusterStatus
from clusterctl.status_view import remarks, status_view
from clusterctl.tables import console, plain
from clusterctl.top_view import Speeds, top_view
from protocol.config_errors import ConfigError
from protocol.configfile import read_config

_interval = click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
_count = click.option(
    "--count", type=click.IntRange(min=1), help="Look so many times.  [default: until Ctrl-C]"
)


@click.command(
    epilog=taught(
        "clusterctl status",
        "clusterctl status --json",
        "clusterctl status --watch",
        refused="no configuration",
    )
)
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@_interval
@_count
@json_option
@config_option
@reported
def status(
    watch: bool, interval_s: float, count: int | None, as_json: bool, config_file: Path | None
) -> None:
    """Show what runs, and how it goes. Succeeds whenever it could look.

    A machine of a worker that is not reached holds up nothing: why is told beneath, once it is known.
    --watch draws in place; where the output is no terminal, one picture follows the other. It asks the
    gateways only: why a machine of a worker is not reached is told without --watch.
    """
    fleet = _Fleet(config_file)
    if not watch:
        pictures = with_witnesses(fleet.home, fleet.config, fleet.status())
        if as_json:
            *_, found = pictures
            output.show_json(found)
        else:
            _show(pictures)
    elif as_json:
        raise click.UsageError("--json is told once: leave out --watch, and ask as often as you like")
    else:
        live.watch(lambda _to: status_view(fleet.status()), interval_s, count, whole_screen=False)


def _show(pictures: Iterator[ClusterStatus]) -> None:
    """The first one, and of the next what is new in it."""
    first = next(pictures)
    console().print(status_view(first))
    sys.stdout.flush()
    for later in pictures:
        for line in remarks(later):
            if line not in remarks(first):
                console().print(plain(line))


@click.command(
    epilog=taught("clusterctl top", "clusterctl top --interval 60 --count 60", refused="no configuration")
)
@_interval
@_count
@config_option
@reported
def top(interval_s: float, count: int | None, config_file: Path | None) -> None:
    """Show the fleet live: load, speed, first token, memory, queue, errors; Ctrl-C ends it.

    The facts of the dashboard, as this machine's gateways tell them. Speed is what a worker generates while
    it has requests. A narrow terminal shows less of each worker. Where the output is no terminal, one
    picture follows the other.
    """
    fleet, speeds = _Fleet(config_file), Speeds()

    def look(to: Console) -> RenderableType:
        found = fleet.status()
        speeds.add(found.workers)
        failures = admin.read_failures(fleet.home, fleet.config)
        return top_view(found, failures, speeds.by_worker, to.width)

    live.watch(look, interval_s, count, whole_screen=True)


class _Fleet:
    """What is looked at, as its configuration has it at present."""

    def __init__(self, config_file: Path | None) -> None:
        """Raises `ConfigError`."""
        self.home, self._path = places(config_file)
        self.config = read_config(self._path)

    def status(self) -> ClusterStatus:
        """While the configuration is being edited and wrong, with the last one that was right."""
        with contextlib.suppress(ConfigError):
            self.config = read_config(self._path)
        return operations.read_status(self.home, self.config)


ALL = (status, top)
