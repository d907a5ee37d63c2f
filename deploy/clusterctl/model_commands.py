"""The commands about models: `clusterctl model …`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from clusterctl import fitting, model_place, model_sizes, model_store, model_verify, operations, output
from clusterctl.memory_fit import size
from clusterctl.model_store import found_folder
from clusterctl.options import Exit, config_option, going_on, json_option, places, reported, taught
from protocol.config import EMBEDDED, WorkerConfig
from protocol.configfile import read_config


@click.group(epilog=taught("clusterctl model list", "clusterctl model pull mlx-community/Qwen3-8B-4bit"))
def model() -> None:
    """Fetch, check and remove models, and see whether they fit.

    They are kept in STUDIOFLEET_MODELS (default ~/.cache/studiofleet/models).
    """


@model.command(
    epilog=taught(
        "clusterctl model fit --model embedded",
        "clusterctl model fit --model mlx-community/Qwen3-8B-4bit --max-model-len 32768 --max-num-seqs 4",
        refused="it does not fit",
    )
)
@click.option("--model", "model", required=True, help="As in add-worker.")
@click.option("--engine", default="batched", show_default=True, help="As in add-worker.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), help="Requests computed together.")
@click.option("--max-model-len", type=click.IntRange(min=1), help="Longest prompt and answer, in tokens.")
@click.option("--kv-tokens", type=click.IntRange(min=1), help="Tokens of all admitted requests together.")
@click.option("--prefix-cache-mb", type=click.IntRange(min=0), help="For prompts that begin alike.")
@json_option
@config_option
@reported
def fit(as_json: bool, config_file: Path | None, **given: Any) -> None:
    """Calculate whether a worker would fit here, beside those that are configured."""
    others = _workers(config_file)
    values = {key: value for key, value in given.items() if value is not None}
    if given["engine"] in model_sizes.ENGINES and given["model"] != EMBEDDED:
        found_folder(given["model"])
    worker = WorkerConfig(id="new worker", **values)
    found = fitting.fit_here(worker, others)
    advice = found.advice(worker.id)
    if as_json:
        output.show_json(fitting.document(found, advice))
    else:
        for line in [*found.lines(), "it fits" if found.fits else "it does not fit", advice]:
            if line:
                click.echo(line)
    if not found.fits:
        raise SystemExit(Exit.REFUSED)


@model.command("list", epilog=taught("clusterctl model list", "clusterctl model list --json"))
@json_option
@config_option
@reported
def list_models(as_json: bool, config_file: Path | None) -> None:
    """Show the models that are here: size, whether they are whole, and which workers use them.

    `verified`: as it arrived, by sizes. `unverified`: whole, but nobody knows how it arrived. `changed`:
    since it was verified. `partial`: not fetched to the end.
    """
    found = model_store.stored_models(_workers(config_file))
    if as_json:
        output.show_json({"models": [{**asdict(each), "path": str(each.path)} for each in found]})
    elif not found:
        here = model_store.models_here()
        click.echo(f"there are no models in {here}; to fetch one: clusterctl model pull ORGANISATION/NAME")
    else:
        output.show_models(found)


@model.command(
    epilog=taught(
        "clusterctl model pull mlx-community/Qwen3-8B-4bit",
        "clusterctl model pull mlx-community/Qwen3-8B-4bit --revision main",
        failed="the hub or the network failed; run it again",
        refused="there is no such model, it may not be read, or the disk is too small",
        also=["130 interrupted: run it again, and it goes on"],
    )
)
@click.argument("model_id", metavar="ID")
@click.option("--revision", help="A branch, tag or commit.  [default: main]")
@reported
def pull(model_id: str, revision: str | None) -> None:
    """Fetch a model of the Hugging Face hub, or what is missing of it.

    A model is in its place only when it is whole and is what the hub says it is. HF_TOKEN, or what `hf
    auth login` stored, is used where a model asks for it; HF_ENDPOINT names another hub.
    """
    try:
        from clusterctl import model_pull  # noqa: PLC0415 (the hub's client takes its time to import)
    except ImportError as error:
        raise operations.OperationError(f"{error}; run: scripts/install") from error
    with going_on(f"what was fetched is kept; to go on: clusterctl model pull {model_id}"):
        changed, folder = model_pull.pull(model_id, revision)
    click.echo(f"{model_id} is in {folder}" if changed else f"unchanged: {model_id} is in {folder} already")


@model.command(
    epilog=taught(
        "clusterctl model verify mlx-community/Qwen3-8B-4bit",
        "clusterctl model verify ~/models/Qwen3-8B-4bit",
        failed="files are damaged; they are named",
        refused="there is no such model",
    )
)
@click.argument("name", metavar="MODEL")
@click.option("--quick", is_flag=True, help="Look at sizes and headers only; nothing is recorded.")
@json_option
@reported
def verify(name: str, quick: bool, as_json: bool) -> None:
    """Read every file of a model, and compare it with what had arrived.

    A folder of which nobody knows how it arrived is recorded as it is now.
    """
    folder = found_folder(name)
    try:
        verdict = model_verify.look(folder) if quick else model_verify.verify(folder)
    except model_verify.DamagedError as error:
        if as_json:
            _show_verdict(name, folder, "damaged", error)
        raise
    if as_json:
        _show_verdict(name, folder, verdict)
    else:
        click.echo(f"{name} {_VERDICTS[verdict]}")


_VERDICTS = {
    model_verify.RECORDED: "is recorded as it is now",
    model_verify.VERIFIED: "is as it arrived",
    model_verify.WHOLE: "is whole, as far as sizes and headers tell",
}


def _show_verdict(
    name: str, folder: Path, state: str, damage: model_verify.DamagedError | None = None
) -> None:
    files = damage.files if damage else {}
    output.show_json({"model": name, "path": str(folder), "state": state, "damaged": files})


@model.command(
    "rm",
    epilog=taught("clusterctl model rm mlx-community/Qwen3-8B-4bit", refused="a worker uses it"),
)
@click.argument("name", metavar="MODEL")
@config_option
@reported
def remove(name: str, config_file: Path | None) -> None:
    """Remove a model that no worker uses, and what of it was fetched in part."""
    freed = model_store.remove_model(name, _workers(config_file))
    click.echo(f"{name} is removed, {size(freed)}" if freed is not None else f"unchanged: there is no {name}")


def _workers(config_file: Path | None) -> tuple[WorkerConfig, ...]:
    """Of the configuration, where there is one."""
    path = places(config_file)[1]
    return read_config(path).workers if path.exists() or config_file is not None else ()


@model.command(
    epilog=taught(
        "clusterctl model push mlx-community/Qwen3-8B-4bit studio-2",
        "clusterctl model push mlx-community/Qwen3-8B-4bit /Volumes/spare/models",
        failed="the connection broke; run it again",
        refused="the model is damaged, another one is there, or the disk is too small",
        also=["6 the node cannot be reached", "130 interrupted: run it again, and it goes on"],
    )
)
@click.argument("name", metavar="MODEL")
@click.argument("target", metavar="TARGET")
@config_option
@reported
def push(name: str, target: str, config_file: Path | None) -> None:
    """Copy a model to the node TARGET, or into the folder TARGET of this machine (with a / in it).

    A copy that was interrupted goes on where it stopped. A model is in its place only when each of its
    files has arrived with the hash that it has here.
    """
    folder = found_folder(name)
    with going_on(f"what was copied is kept; to go on: clusterctl model push {name} {target}"):
        changed, place = model_place.push_to(folder, target, config_file)
    click.echo(f"{name} is in {place}" if changed else f"unchanged: {name} is in {place} already")
