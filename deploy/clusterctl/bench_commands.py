"""The command that measures what clients of the own fleet are served."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from clusterctl import admin, output
from clusterctl.bench_client import Question
from clusterctl.bench_view import bench_view
from clusterctl.benchmark import Benchmark
from clusterctl.operations import RefusedError
from clusterctl.options import Exit, config_option, places, reported, taught
from clusterctl.tables import console
from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config
from protocol.keyfiles import KeyFileError, read_secret
from protocol.keys import read_admin_key

KEY = "STUDIOFLEET_API_KEY"
_MOST_AT_ONCE = 512
_MOST_LEVELS = 16


def _levels(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Numbers like 1,4,8. Raises `BadParameter`."""
    parts = value.split(",")
    if len(parts) > _MOST_LEVELS or not all(
        part.isdecimal() and 0 < int(part) <= _MOST_AT_ONCE for part in parts
    ):
        raise click.BadParameter(f"up to {_MOST_LEVELS} numbers of 1 to {_MOST_AT_ONCE}, like 1,4,8")
    return tuple(int(part) for part in parts)


def _complete_models(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    with contextlib.suppress(ConfigError, OSError):
        workers = read_config(places(context.params.get("config_file"))[1]).workers
        names = {name for worker in workers for name in (worker.name, *worker.aliases)}
        return [CompletionItem(name) for name in sorted(names) if name.startswith(begun)]
    return []


@click.command(
    epilog=taught(
        "clusterctl bench --model smol",
        "clusterctl bench --model qwen3-8b --concurrency 1,8,32 --prompt-tokens 2000 --json bench.json",
        failed="no request was answered",
        refused="no gateway, no place for the file, or the first request, which is not measured, is refused",
        also=["130 interrupted: what was measured until then is shown"],
    )
)
@click.option(
    "--model", required=True, help="The name that clients ask for.", shell_complete=_complete_models
)
@click.option(
    "--concurrency",
    metavar="N,...",
    callback=_levels,
    default="1,4,8",
    show_default=True,
    help="Requests at once; each number is a level of its own.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, 100_000),
    help="Of each level.  [default: 4 times as many as run at once, at least 8]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(2, 100_000),
    default=128,
    show_default=True,
    help="Length of every answer.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1, 1_000_000),
    default=128,
    show_default=True,
    help="About so long are prompts.",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    help="Seconds after which a level is cut short.",
)
@click.option("--gateway", "gateway_id", help="Which one is asked.  [default: the first that runs here]")
@click.option(
    "--key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Has the API key.  [default: {KEY} of the environment, else the admin key]",
)
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, allow_dash=True), help="Save figures; - prints them."
)
@config_option
@reported
def bench(config_file: Path | None, gateway_id: str | None, key_file: Path | None, **given: Any) -> None:
    """Measure what clients of a model are served: first token, gaps, tokens/s, by worker.

    Prompts are all different, so that no prefix cache helps; answers are streamed and have all the same
    length. p95 is what 95 of a hundred were served, or better: times no longer, speeds no lower. A gap is
    the time between two pieces of an answer, which may hold several tokens. The admin key knows no limits;
    with an API key, its limits and its class in the queue count.
    """
    if given["file"] not in (None, "-"):
        _refuse_unwritable(Path(given["file"]))
    home, path = places(config_file)
    gateway_id = _gateway(home, read_config(path), gateway_id)
    key = _key(home, key_file)
    question = Question(
        model=given["model"], words=given["prompt_tokens"], max_tokens=given["max_tokens"], key=key
    )
    benchmark = Benchmark(partial(_connect, home, gateway_id), question, given["limit_s"])
    benchmark.warm_up(given["prompt_tokens"])
    benchmark.run(given["concurrency"], given["requests"], output.say)
    if given["file"] != "-":
        console().print(bench_view(benchmark.levels, benchmark.reasons))
    if given["file"] is not None:
        with click.open_file(given["file"], "w", encoding="utf-8") as to:
            to.write(benchmark.document())
    if benchmark.interrupted:
        output.say("interrupted")
        sys.exit(Exit.INTERRUPTED)
    if not any(each.total.tokens for each in benchmark.levels):
        sys.exit(Exit.FAILED)


def _refuse_unwritable(file: Path) -> None:
    """Before anything is measured. What stands there stays until there are figures. Raises `RefusedError`."""
    parent = file.absolute().parent
    if not parent.is_dir() or not os.access(file if file.exists() else parent, os.W_OK):
        raise RefusedError(f"{file} cannot be written; name a file in a folder that is there and yours")


def _gateway(home: Home, config: ClusterConfig, wanted: str | None) -> str:
    """Raises `RefusedError` where none runs."""
    local = [gateway.id for gateway in config.local_gateways]
    if wanted is not None and wanted not in local:
        raise RefusedError(f"this machine has no gateway {wanted!r}; it has: {', '.join(local)}")
    for gateway_id in local if wanted is None else [wanted]:
        if admin.read_state(home, gateway_id) is not None:
            return gateway_id
    raise RefusedError(
        f"the gateway {wanted or ' or '.join(local)} does not answer; to start it: clusterctl up"
    )


def _connect(home: Home, gateway_id: str, timeout_s: float) -> HTTPConnection:
    connection = admin.connection_to(home, gateway_id, timeout_s)
    if connection is None:
        raise ConnectionRefusedError(f"the gateway {gateway_id} does not run any more")
    return connection


def _key(home: Home, file: Path | None) -> str:
    """Raises `KeyFileError` for a file that is not its owner's alone."""
    if file is not None:
        return read_secret(file, "write the key of clusterctl keys create into it, and: chmod 600")
    if key := os.environ.get(KEY, ""):
        return key
    with contextlib.suppress(KeyFileError):
        return read_admin_key(home)
    return ""
