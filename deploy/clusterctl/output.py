"""What people see: lines, tables, and JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import click
import msgspec
from rich.text import Text

from clusterctl.logs import Entry
from clusterctl.memory_fit import size
from clusterctl.model_store import StoredModel
from clusterctl.tables import add_row, console, new_table
from protocol.config import ClusterConfig


def say(line: str) -> None:
    """Tell how it goes; on the standard error, so that it mixes with no result."""
    click.echo(line, err=True)


def show_json(value: Any) -> None:
    """One JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show_entries(entries: Iterable[Entry]) -> None:
    """What processes logged, each line with the id of its process."""
    for entry in entries:
        head, *more = entry.message.split("\n")
        origin = f"{entry.level} {entry.logger} " if entry.level else ""
        time = entry.time.isoformat(sep=" ", timespec="milliseconds")
        click.echo(f"{time} {entry.id}: {origin}{head}")
        for line in more:
            click.echo(f"{' ' * len(time)} {entry.id}: {line}")


def show_entries_as_json(entries: Iterable[Entry]) -> None:
    """One JSON object a line."""
    for entry in entries:
        document = {**asdict(entry), "time": entry.time.astimezone()}
        click.echo(msgspec.json.encode(document).decode())


def show_models(found: Iterable[StoredModel]) -> None:
    """A table, and what is damaged beneath it."""
    table, remarks = new_table("model", "size", "state", "workers"), []
    for each in found:
        add_row(table, each.name, size(each.bytes), each.state, ", ".join(each.workers))
        if each.why:
            remarks.append(f"{each.name}: {each.why}")
    to = console()
    to.print(table)
    for line in remarks:
        to.print(Text(line))


def show_list(config: ClusterConfig) -> None:
    """The configured workers as a table."""
    table = new_table("worker", "model", "served as", "aliases", "engine", "node", "together", "residency")
    for worker in config.workers:
        add_row(
            table,
            worker.id,
            worker.model,
            worker.name,
            ", ".join(worker.aliases),
            worker.engine,
            worker.node,
            worker.slots,
            worker.residency,
        )
    console().print(table)


def show_keys(document: Iterable[Mapping[str, Any]]) -> None:
    """API keys, as `keyring.key_document` tells them, as a table."""
    limits = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
    table = new_table(
        "key", "begins with", "models", "priority", "requests/min", "tokens/min", "at once", "expires"
    )
    for key in document:
        expires = key["expires"].astimezone().strftime("%Y-%m-%d %H:%M") if key["expires"] else "never"
        add_row(
            table,
            key["name"],
            ", ".join(key["prefixes"]),
            ", ".join(key["models"]) or "all",
            key["priority"],
            *(key[limit] for limit in limits),
            expires if key["valid"] else f"expired {expires}",
        )
    console().print(table)


def list_document(config: ClusterConfig) -> dict[str, Any]:
    """The configured processes for programs; what is not set stands there with its default."""
    workers = [
        {
            **msgspec.to_builtins(worker),
            "served_name": worker.name,
            "max_num_seqs": worker.slots,
            "max_waiting": worker.waiting_room,
        }
        for worker in config.workers
    ]
    return {"gateways": [msgspec.to_builtins(gateway) for gateway in config.all_gateways], "workers": workers}
