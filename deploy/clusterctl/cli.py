"""The commands of `clusterctl`: arguments in, exit code out.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 3 refused by a check, 4 rolled back, 5 partly
done, 6 a machine cannot be reached, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from clusterctl import (
    commands,
    configfile,
    edits,
    operations,
    output,
    plan_commands,
    status_commands,
    upgrade_commands,
    wire_commands,
    worker_commands,
)
from clusterctl.bench_commands import bench
from clusterctl.boot_commands import boot
from clusterctl.control import NAME
from clusterctl.doctor_commands import doctor
from clusterctl.explain_commands import explain
from clusterctl.helper_commands import helper
from clusterctl.key_commands import keys
from clusterctl.model_commands import model
from clusterctl.node_commands import node
from clusterctl.options import (
    config_option,
    going_on,
    places,
    reported,
    start_timeout_option,
    taught,
)
from clusterctl.wire_keys import ensure_pairs
from protocol import __version__, logs
from protocol.api_keys import read_api_keys, refuse_open_gateways
from protocol.configfile import read_config, read_text

_LOOK_OR_END = "to look: clusterctl status; to end it: clusterctl down"
_HTTP = "127.0.0.1:8000"


def main() -> None:
    """The program."""
    cli(prog_name="clusterctl")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=taught(
        "clusterctl init",
        "clusterctl up --wait",
        "clusterctl status",
        refused="nothing was done",
        also=["130 interrupted: what was asked for goes on"],
    ),
)
@click.version_option(__version__, package_name="studiofleet")
def cli() -> None:
    """Runs a Studiofleet cluster: one gateway and its workers on this machine.

    State is kept in STUDIOFLEET_HOME (default ~/.studiofleet). `clusterctl COMMAND --help` shows
    examples.
    """


@cli.command(
    epilog=taught(
        "clusterctl init",
        "clusterctl init --workers 2 --http 127.0.0.1:8080",
        refused="another configuration is there, or --http is no address",
    )
)
@click.option("--http", default=None, help=f"Where clients connect.  [default: {_HTTP}]")
@click.option("--workers", type=click.IntRange(0, 64), default=None, help="So many workers.  [default: 1]")
@config_option
@reported
def init(http: str | None, workers: int | None, config_file: Path | None) -> None:
    """Write a first cluster.toml, with workers on the embedded model."""
    home, path = places(config_file)
    operations.make_folders(home)
    text = edits.new_config(http or _HTTP, 1 if workers is None else workers)
    if configfile.create_config(path, text):
        ensure_pairs(home, read_config(path))
        click.echo(f"{path} is written; to start: clusterctl up --wait")
        return
    read_config(path)
    asked = http is not None or workers is not None
    if asked and read_text(path) != text:
        raise edits.EditError(f"{path} is there already and differs; edit it, or remove it first")
    click.echo(f"unchanged: {path} is there already")


@cli.command(
    epilog=taught(
        "clusterctl up --wait",
        "clusterctl up --foreground",
        failed="with --wait: a process never serves",
        refused="the configuration is wrong, or the port is in use",
        also=["130 interrupted: what is starting goes on"],
    )
)
@click.option("--wait", is_flag=True, help="Return when everything serves.")
@click.option("--foreground", is_flag=True, help="Stay; Ctrl-C takes everything down.")
@start_timeout_option
@config_option
@reported
def up(wait: bool, foreground: bool, timeout: float, config_file: Path | None) -> None:
    """Start gateway and workers, or what is missing of them.

    Without an option it returns when the processes are started, and they outlive the terminal.
    """
    if wait and foreground:
        raise click.UsageError("--wait returns and --foreground stays: choose one")
    home, path = places(config_file)
    config = read_config(path)
    operations.make_folders(home)
    refuse_open_gateways(config.local_gateways, read_api_keys(home))
    if foreground:
        logs.set_up(msgspec.structs.replace(config.log, level="info"), NAME, home.log(NAME))
        if not operations.supervise_here(home, path, config, os.environ):
            click.echo("unchanged: the cluster is up already, under another supervisor")
        return
    operations.bring_up(home, path, config, os.environ)
    if wait:
        with going_on(f"the cluster goes on starting; {_LOOK_OR_END}"):
            operations.wait_until_ready(home, config, timeout, output.say)
    status = operations.read_status(home, config)
    for gateway in status.gateways:
        click.echo(f"{gateway.id}: {gateway.state} {gateway.url or ''}".rstrip())
    for worker in status.workers:
        click.echo(f"{worker.id}: {worker.state} ({worker.model})")
    outdated = [process.id for process in status.processes if process.outdated]
    if outdated:
        output.say(
            f"{', '.join(outdated)}: left running with the older configuration;"
            " to apply the present one: clusterctl restart ID"
        )


@cli.command(epilog=taught("clusterctl down", also=["130 interrupted: everything ends all the same"]))
@config_option
@reported
def down(config_file: Path | None) -> None:
    """End everything; running requests are finished first."""
    home, path = places(config_file)
    with going_on("running requests are being finished, then everything ends; to look: clusterctl status"):
        ran = operations.take_down(home, path, output.say)
    click.echo("the cluster is down" if ran else "unchanged: the cluster was not running")


for command in (
    *status_commands.ALL,
    *worker_commands.ALL,
    *plan_commands.ALL,
    *upgrade_commands.ALL,
    *commands.ALL,
    *wire_commands.ALL,
    keys,
    model,
    boot,
    helper,
    node,
    doctor,
    explain,
    bench,
):
    cli.add_command(command)


if __name__ == "__main__":
    main()
