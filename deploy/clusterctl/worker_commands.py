"""The commands about the workers of the configuration: add-worker, remove-worker, list."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from clusterctl import (
    adding,
    configfile,
    draining,
    edits,
    fitting,
    journal,
    model_sizes,
    node_placing,
    operations,
    output,
)
from clusterctl.commands import complete_ids
from clusterctl.model_store import found_folder
from clusterctl.options import (
    Exit,
    config_option,
    going_on,
    json_option,
    places,
    reported,
    start_timeout_option,
    taught,
)
from clusterctl.recovery import recover
from clusterctl.reserving import reserved
from clusterctl.wire_keys import forget_worker
from protocol.addresses import LOCAL, Home
from protocol.api_keys import read_api_keys
from protocol.config import EMBEDDED, ClusterConfig, WorkerConfig, parse
from protocol.configfile import read_config, read_text
from protocol.models import is_hub_id


@click.command(
    "add-worker",
    epilog=taught(
        "clusterctl add-worker --model embedded --wait",
        "clusterctl add-worker --model ~/models/Qwen3-8B-4bit --served-name qwen3-8b --max-num-seqs 16",
        "clusterctl add-worker --model embedded --id smol-9 --dry-run",
        "clusterctl add-worker --model embedded --host studio-2 --wait",
        failed="with --wait: it never serves",
        refused="the id has another worker, there is no such model, it does not fit, or a value is wrong",
        also=[
            "4 it could not be started on its node, or with --wait: it never serves there; that is undone",
            "6 the node cannot be reached",
            "130 interrupted: the worker goes on starting; on a node, you are asked, and without a terminal"
            " it is undone",
        ],
    ),
)
@click.option(
    "--model",
    required=True,
    help="`embedded`, a folder, one that was pulled, or what its engine takes.",
)
@click.option("--host", "node", help="The node that it runs on.  [default: this machine]")
@click.option("--id", "id", help="Of the process.  [default: from the model's name]")
@click.option("--served-name", help="Clients ask for this model.  [default: last part of --model]")
@click.option("--alias", "aliases", multiple=True, help="A further name. Can be repeated.")
@click.option(
    "--engine", help="batched, serial, vision, embeddings, fake or package.module:Class.  [default: batched]"
)
@click.option("--adapter", help="A folder that mlx_lm.lora wrote for the model.")
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
@click.option("--force-memory", is_flag=True, help="Add it although it does not fit into the memory.")
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
    forced = given.pop("force_memory")
    entry = _entry(given)
    if not forced and entry.get("node", LOCAL) == LOCAL:
        _check_memory(path, entry)
    if dry_run:
        _preview(path, entry)
        return
    if wait:
        operations.refuse_when_down(home, path)
    recover(home, path, output.say, [entry.get("node", LOCAL)])
    proof = _Proof(home, timeout)
    if entry.get("node", LOCAL) == LOCAL:
        changed, worker_id, following = _add_here(home, path, entry, start=not no_start)
    elif no_start:
        raise click.UsageError("a worker of another machine is started there: leave out --no-start")
    else:
        changed, worker_id = node_placing.add(
            home, path, entry, output.say, force_memory=forced, prove=proof if wait else None
        )
        following = f"{'is serving' if proof.served else 'is starting'} on {entry['node']}"
    config = read_config(path)
    if changed:
        click.echo(f"{worker_id} is added ({config.worker_named(worker_id).name}); it {following}")
    else:
        click.echo(f"unchanged: {worker_id} is there already")
    if wait:
        _wait_unless_proven(home, config, worker_id, proof)
        _invite(home, config, worker_id)


def _wait_unless_proven(home: Home, config: ClusterConfig, worker_id: str, proof: _Proof) -> None:
    if proof.kept:
        sys.exit(Exit.INTERRUPTED)
    if not proof.served:
        with going_on(f"{worker_id} goes on starting; to undo it: clusterctl remove-worker {worker_id}"):
            _wait_for_a_token(home, config, worker_id, proof.timeout_s)


def _wait_for_a_token(home: Home, config: ClusterConfig, worker_id: str, timeout_s: float) -> None:
    begun = time.monotonic()
    node_placing.wait_until_serving(home, config, worker_id, timeout_s, output.say)
    output.say(adding.step("ready", f"{worker_id} serves after {time.monotonic() - begun:.0f} s"))
    click.echo(draining.first_token(home, config, worker_id))


def _invite(home: Home, config: ClusterConfig, worker_id: str) -> None:
    gateways = operations.read_status(home, config).gateways
    url = next((gateway.url for gateway in gateways if gateway.url), None)
    if url is not None:
        needs_key = read_api_keys(home) is not None
        for line in adding.invitation(url, config.worker_named(worker_id).name, needs_key=needs_key):
            output.say(line)


class _Proof:
    """Waits until a worker of another machine serves; whoever interrupts that says what becomes of it."""

    def __init__(self, home: Home, timeout_s: float) -> None:
        self._home = home
        self.timeout_s = timeout_s
        self.served = False
        self.kept = False
        """It was interrupted, and goes on starting."""

    def __call__(self, config: ClusterConfig, worker_id: str) -> None:
        """Raises `OperationError` when it never serves, and `KeyboardInterrupt` when it shall be undone."""
        try:
            _wait_for_a_token(self._home, config, worker_id, self.timeout_s)
            self.served = True
        except KeyboardInterrupt:
            self.kept = _is_kept(worker_id)
            if not self.kept:
                output.say(f"{worker_id}: what was begun is being undone")
                raise


def _is_kept(worker_id: str) -> bool:
    """Nobody can be asked where there is no terminal."""
    if not sys.stdin.isatty():
        return False
    try:
        return click.confirm(f"{worker_id} is still starting. Keep it? Else it is undone", err=True)
    except click.Abort:
        return False


def _add_here(home: Home, path: Path, entry: dict[str, Any], *, start: bool) -> tuple[bool, str, str]:
    with reserved(home, path, entry) as whole:
        changed = configfile.change_config(path, lambda text: edits.add_worker(text, whole)[0])
    started = start and operations.follow_config(home, path)
    return changed, whole["id"], "is starting" if started else "starts with: clusterctl up"


def _check_memory(path: Path, entry: dict[str, Any]) -> None:
    """Raises `RefusedError` with the arithmetic; says what would be tight. Asks nothing of other engines."""
    text = read_text(path)
    changed, worker = edits.add_worker(text, entry)
    if changed == text or worker.engine not in model_sizes.ENGINES:
        return
    found = fitting.fit_here(worker, parse(text).workers)
    fitting.refuse_unless_it_fits(found, worker.id)
    for line in adding.memory_steps(found.lines(), worker.id):
        output.say(line)
    if advice := found.advice(worker.id):
        output.say(adding.step("", advice))


def _preview(path: Path, entry: dict[str, Any]) -> None:
    text = read_text(path)
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
    if values.get("node", LOCAL) != LOCAL:
        return _of_node(values)
    if _names_a_folder(values):
        values["model"] = _model(values["model"])
    if "adapter" in values:
        folder = Path(values["adapter"]).expanduser()
        if not values["adapter"] or not folder.is_dir():
            raise edits.EditError(
                f"there is no adapter at {values['adapter']!r}; give one that mlx_lm.lora wrote"
            )
        values["adapter"] = str(folder.absolute())
    return _ordered(values)


def _of_node(values: dict[str, Any]) -> dict[str, Any]:
    """Its folders are the node's."""
    for key in ("model", "adapter"):
        if key == "model" and (not _names_a_folder(values) or is_hub_id(values[key])):
            continue
        if key in values and not values[key].startswith("/"):
            raise edits.EditError(f"--{key} {values[key]!r}: give its whole path on {values['node']}")
    return _ordered(values)


def _names_a_folder(values: dict[str, Any]) -> bool:
    """Whether its model is one of files; other engines take what they like."""
    return values.get("engine", "batched") in model_sizes.ENGINES and values["model"] != EMBEDDED


def _ordered(values: dict[str, Any]) -> dict[str, Any]:
    return {field: values[field] for field in WorkerConfig.__struct_fields__ if field in values}


def _model(given: str) -> str:
    """As the configuration has it: a worker, in another folder, finds what was pulled by its name."""
    if not given:
        raise edits.EditError("--model is empty; give a model folder")
    folder = found_folder(given)
    return given if is_hub_id(given) and not Path(given).exists() else str(folder.absolute())


@click.command(
    "remove-worker",
    epilog=taught(
        "clusterctl remove-worker smol-2",
        "clusterctl remove-worker smol-2 --dry-run",
        refused="the id is a gateway's",
        also=["6 its node cannot be reached", "130 interrupted: the worker ends all the same"],
    ),
)
@click.argument("worker_id", metavar="ID", shell_complete=complete_ids)
@click.option("--dry-run", is_flag=True, help="Only show what would change in the configuration.")
@config_option
@reported
def remove_worker(worker_id: str, dry_run: bool, config_file: Path | None) -> None:
    """End a worker, once its requests are finished, and take it out of the configuration."""
    home, path = places(config_file)
    if dry_run:
        _preview_removal(path, worker_id)
        return
    recover(home, path, output.say, _nodes_of(home, read_config(path), worker_id))
    config = read_config(path)
    known = next((worker for worker in config.workers if worker.id == worker_id), None)
    if known is not None and known.node != LOCAL:
        node_placing.remove(home, path, known, output.say)
        click.echo(f"{worker_id} is removed")
        return
    if known:
        with journal.operation(home, node_placing.REMOVE, {"worker": worker_id, "node": LOCAL}) as operation:
            with operation.step("configure"):
                configfile.change_config(path, lambda text: edits.remove_worker(text, worker_id))
            with operation.step("key"):
                forget_worker(home, worker_id)
    elif any(gateway.id == worker_id for gateway in config.all_gateways):
        raise edits.EditError(f"{worker_id} is a gateway, not a worker")
    if operations.follow_config(home, path):
        with going_on(f"{worker_id} is out of the configuration, and ends once its requests are finished"):
            operations.wait_until_gone(home, config, worker_id, output.say)
    elif worker_id in operations.running_records(home):
        output.say(f"{worker_id} still runs, as no supervisor is there to end it; for that: clusterctl up")
    click.echo(f"{worker_id} is removed" if known else f"unchanged: there is no worker {worker_id}")


def _preview_removal(path: Path, worker_id: str) -> None:
    text = read_text(path)
    if all(worker.id != worker_id for worker in parse(text).workers):
        click.echo(f"unchanged: there is no worker {worker_id}")
    else:
        click.echo(edits.difference(text, edits.remove_worker(text, worker_id), path.name), nl=False)


def _nodes_of(home: Home, config: ClusterConfig, worker_id: str) -> set[str]:
    """Where it is configured, and where a command that was cut off was adding or removing it."""
    interrupted = [entry.subject for entry in journal.interrupted(home)]
    return {worker.node for worker in config.workers if worker.id == worker_id} | {
        subject["node"] for subject in interrupted if subject.get("worker") == worker_id
    }


@click.command("list", epilog=taught("clusterctl list", "clusterctl list --json", refused="no configuration"))
@json_option
@config_option
@reported
def list_workers(as_json: bool, config_file: Path | None) -> None:
    """Show the configured workers."""
    config = read_config(places(config_file)[1])
    if as_json:
        output.show_json(output.list_document(config))
    else:
        output.show_list(config)


ALL = (add_worker, remove_worker, list_workers)
