"""The commands of `clusterctl`: arguments in, exit code out.

Exit codes: 0 done or unchanged, 1 failed, 2 wrong usage, 3 refused by a check.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from clusterctl import commands, configfile, draining, edits, operations, output
from clusterctl.boot_commands import boot
from clusterctl.control import NAME
from clusterctl.options import config_option, json_option, places, reported, start_timeout_option
from protocol import __version__, logs
from protocol.config import EMBEDDED, WorkerConfig

_HTTP = "127.0.0.1:8000"


def main() -> None:
    """The program."""
    cli(prog_name="clusterctl")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="studiofleet")
def cli() -> None:
    """Runs a Studiofleet cluster: one gateway and its workers on this machine.

    State is kept in STUDIOFLEET_HOME (default ~/.studiofleet). Exit codes: 0 done or unchanged,
    1 failed, 2 wrong usage, 3 refused by a check.
    """


@cli.command()
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
        click.echo(f"{path} is written; to start: clusterctl up --wait")
        return
    asked = http is not None or workers is not None
    if asked and configfile.read_text(path) != text:
        raise edits.EditError(f"{path} is there already and differs; edit it, or remove it first")
    click.echo(f"unchanged: {path} is there already")


@cli.command()
@click.option("--wait", is_flag=True, help="Return when everything serves.")
@click.option("--foreground", is_flag=True, help="Stay; Ctrl-C takes everything down.")
@start_timeout_option
@config_option
@reported
def up(wait: bool, foreground: bool, timeout: float, config_file: Path | None) -> None:
    """Start gateway and workers, or what is missing of them."""
    if wait and foreground:
        raise click.UsageError("--wait returns and --foreground stays: choose one")
    home, path = places(config_file)
    config = configfile.read_config(path)
    operations.make_folders(home)
    if foreground:
        logs.set_up(msgspec.structs.replace(config.log, level="info"), NAME, home.log(NAME))
        if not operations.supervise_here(home, path, config, os.environ):
            click.echo("unchanged: the cluster is up already, under another supervisor")
        return
    operations.bring_up(home, path, config, os.environ)
    if wait:
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


@cli.command()
@config_option
@reported
def down(config_file: Path | None) -> None:
    """End everything; running requests are finished first."""
    home, path = places(config_file)
    ran = operations.take_down(home, path, output.say)
    click.echo("the cluster is down" if ran else "unchanged: the cluster was not running")


@cli.command("add-worker")
@click.option("--model", required=True, help="`embedded`, a folder, or what the engine's class takes.")
@click.option("--id", "id", help="Of the process.  [default: from the model's name]")
@click.option("--served-name", help="Clients ask for this model.  [default: last part of --model]")
@click.option("--alias", "aliases", multiple=True, help="A further name. Can be repeated.")
@click.option("--engine", help="batched, fake or package.module:Class.  [default: batched]")
@click.option("--max-num-seqs", type=int, help="Requests computed together.")
@click.option("--max-waiting", type=int, help="Requests that wait in the worker.")
@click.option("--max-model-len", type=int, help="Longest prompt and answer, in tokens.")
@click.option("--kv-tokens", type=int, help="Tokens of all admitted requests together.")
@click.option(
    "--engine-option", "engine_options", multiple=True, metavar="KEY=VALUE", help="Can be repeated."
)
@click.option("--prefix-cache-mb", type=int, help="Memory for prompts that begin alike; 0: none.")
@click.option(
    "--residency", type=click.Choice(["always", "on_demand"]), help="When it is loaded.  [default: always]"
)
@click.option("--idle-timeout", type=float, help="Seconds without requests until on_demand frees the model.")
@click.option("--memory-mb", type=int, help="What the loaded model takes.  [default: from its files]")
@click.option(
    "--drain-timeout", "drain_timeout_s", type=float, help="Seconds for running requests at its end."
)
@click.option("--load-stall", "load_stall_s", type=float, help="Seconds without progress that end a load.")
@click.option("--no-start", is_flag=True, help="Only write the configuration.")
@click.option("--wait", is_flag=True, help="Return when it serves, and show a token that it generated.")
@click.option("--dry-run", is_flag=True, help="Only show what would change in the configuration.")
@start_timeout_option
@config_option
@reported
def add_worker(
    config_file: Path | None, no_start: bool, wait: bool, dry_run: bool, timeout: float, **given: Any
) -> None:
    """Add a worker to the configuration, and start it if the cluster runs."""
    if wait and (no_start or dry_run):
        raise click.UsageError("--wait waits for a worker that starts: leave out --no-start and --dry-run")
    home, path = places(config_file)
    entry = _entry(given)
    if dry_run:
        _preview(path, entry)
        return
    if wait:
        operations.refuse_when_down(home)
    added: list[WorkerConfig] = []

    def change(text: str) -> str:
        changed, worker = edits.add_worker(text, entry)
        added.append(worker)
        return changed

    changed = configfile.change_config(path, change)
    worker_id = added[-1].id
    started = not no_start and operations.follow_config(home, path)
    following = "is starting" if started else "starts with: clusterctl up"
    if changed:
        click.echo(f"{worker_id} is added ({added[-1].name}); it {following}")
    else:
        click.echo(f"unchanged: {worker_id} is there already")
    if wait:
        config = configfile.read_config(path)
        draining.wait_until_serving(home, config, worker_id, timeout, output.say)
        click.echo(draining.first_token(home, config, worker_id))


def _preview(path: Path, entry: dict[str, Any]) -> None:
    text = configfile.read_text(path)
    changed, worker = edits.add_worker(text, entry)
    if changed == text:
        click.echo(f"unchanged: {worker.id} is there already")
    else:
        click.echo(edits.difference(text, changed, path.name), nl=False)


def _entry(given: dict[str, Any]) -> dict[str, Any]:
    """The table of a worker: the keys that were given, in the order of the struct."""
    values = {key: value for key, value in given.items() if value is not None and value != ()}
    if "aliases" in values:
        values["aliases"] = list(values["aliases"])
    if "engine_options" in values:
        values["engine_options"] = dict(edits.option(text) for text in values["engine_options"])
    if values.get("engine", "batched") == "batched" and values["model"] != EMBEDDED:
        folder = Path(values["model"]).expanduser()
        if not values["model"] or not folder.is_dir():
            raise edits.EditError(
                f"there is no model folder {values['model']!r}; give a folder in MLX format, or {EMBEDDED!r}"
            )
        values["model"] = str(folder.absolute())  # the worker runs in another folder
    return {field: values[field] for field in WorkerConfig.__struct_fields__ if field in values}


@cli.command("remove-worker")
@click.argument("worker_id", metavar="ID")
@config_option
@reported
def remove_worker(worker_id: str, config_file: Path | None) -> None:
    """End a worker, once its requests are finished, and take it out of the configuration."""
    home, path = places(config_file)
    config = configfile.read_config(path)
    known = any(worker.id == worker_id for worker in config.workers)
    if known:
        configfile.change_config(path, lambda text: edits.remove_worker(text, worker_id))
    elif any(gateway.id == worker_id for gateway in config.all_gateways):
        raise edits.EditError(f"{worker_id} is a gateway, not a worker")
    if operations.follow_config(home, path):
        operations.wait_until_gone(home, worker_id)
    elif worker_id in operations.running_records(home):
        output.say(f"{worker_id} still runs, as no supervisor is there to end it; for that: clusterctl up")
    click.echo(f"{worker_id} is removed" if known else f"unchanged: there is no worker {worker_id}")


@cli.command("list")
@json_option
@config_option
@reported
def list_workers(as_json: bool, config_file: Path | None) -> None:
    """Show the configured workers."""
    config = configfile.read_config(places(config_file)[1])
    if as_json:
        output.show_json(output.list_document(config))
    else:
        output.show_list(config)


@cli.command()
@json_option
@config_option
@reported
def status(as_json: bool, config_file: Path | None) -> None:
    """Show what runs, and how it goes. Succeeds whenever it could look."""
    home, path = places(config_file)
    found = operations.read_status(home, configfile.read_config(path))
    if as_json:
        output.show_json(found)
    else:
        output.show_status(found)


for command in (*commands.ALL, boot):
    cli.add_command(command)


if __name__ == "__main__":
    main()
