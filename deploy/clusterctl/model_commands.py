"""The commands about models: `clusterctl model …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from clusterctl import fitting, model_sizes, output
from clusterctl.model_store import found_folder
from clusterctl.options import Exit, config_option, json_option, places, reported, taught
from protocol.config import EMBEDDED, WorkerConfig
from protocol.configfile import read_config


@click.group(epilog=taught("clusterctl model fit --model embedded"))
def model() -> None:
    """See whether models fit.

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
    path = places(config_file)[1]
    others = read_config(path).workers if path.exists() or config_file is not None else ()
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
