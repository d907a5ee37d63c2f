"""What people see: lines, tables, and JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clusterctl.logs import Entry
from clusterctl.memory_fit import size
from clusterctl.model_store import StoredModel
from clusterctl.progress import SERVES
from clusterctl.status import AWAY, ClusterStatus, ProcessStatus, WorkerStatus
from protocol.addresses import LOCAL
from protocol.config import ClusterConfig
from protocol.states import WorkerState

_WIDE = 250
"""Columns where the output is no terminal: lines are not broken there."""
_COLOURS = {
    WorkerState.READY: "green",
    WorkerState.FAILED: "red",
    WorkerState.PARKED: "red",
    WorkerState.STOPPED: "dim",
}


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
    console, table, remarks = _console(), _table("model", "size", "state", "workers"), []
    for each in found:
        _row(table, each.name, size(each.bytes), each.state, ", ".join(each.workers))
        if each.why:
            remarks.append(f"{each.name}: {each.why}")
    console.print(table)
    for line in remarks:
        console.print(Text(line))


def show_status(status: ClusterStatus) -> None:
    """The picture as tables."""
    console = _console()
    gateways = _table("gateway", "state", "url", "pid", "streams", "queued", "restarts")
    for gateway in status.gateways:
        cells = (gateway.url, gateway.pid, gateway.streams, gateway.queued, gateway.restarts)
        _row(gateways, gateway.id, gateway.state, *cells)
    console.print(gateways)
    workers = _table(
        "worker", "state", "model", "pid", "memory", "running", "waiting", "rejected", "restarts"
    )
    for worker in status.workers:
        progress = "" if worker.progress is None else f" {worker.progress:.0%}"
        loading = worker.state == WorkerState.LOADING
        _row(
            workers,
            worker.id,
            worker.state + (progress if loading else ""),
            worker.model,
            worker.pid,
            f"{worker.resident_mb} MB" if worker.resident_mb else None,
            _of(worker.running, worker.max_num_seqs),
            _of(worker.waiting, worker.max_waiting),
            worker.rejected,
            worker.restarts,
        )
    console.print(workers)
    for line in _remarks(status):
        console.print(Text(line))


def show_list(config: ClusterConfig) -> None:
    """The configured workers as a table."""
    table = _table("worker", "model", "served as", "aliases", "engine", "node", "together", "residency")
    for worker in config.workers:
        _row(
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
    _console().print(table)


def show_keys(document: Iterable[Mapping[str, Any]]) -> None:
    """API keys, as `keyring.key_document` tells them, as a table."""
    limits = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
    table = _table(
        "key", "begins with", "models", "priority", "requests/min", "tokens/min", "at once", "expires"
    )
    for key in document:
        expires = key["expires"].astimezone().strftime("%Y-%m-%d %H:%M") if key["expires"] else "never"
        _row(
            table,
            key["name"],
            ", ".join(key["prefixes"]),
            ", ".join(key["models"]) or "all",
            key["priority"],
            *(key[limit] for limit in limits),
            expires if key["valid"] else f"expired {expires}",
        )
    _console().print(table)


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


def _remarks(status: ClusterStatus) -> list[str]:
    lines = []
    if status.supervisor.pid is None:
        running = any(process.pid for process in status.processes)
        without = "processes run without a supervisor; " if running else "the cluster is down; "
        lines.append(f"{without}to bring it up: clusterctl up")
    outdated = [process.id for process in status.processes if process.outdated]
    if outdated:
        lines.append(
            f"{', '.join(outdated)}: running with an older configuration;"
            " to apply the present one: clusterctl restart ID"
        )
    lines += [f"{w.id}: {w.detail}" for w in status.workers if w.state == WorkerState.IDLE and w.detail]
    lines += [_away_line(w) for w in status.workers if w.detail == AWAY]
    for process in status.processes:
        if process.last_error:
            past = "the last error was: " if process.state in SERVES else ""
            lines.append(f"{process.id}: {past}{process.last_error}")
        if process.state == WorkerState.PARKED:
            lines.append(f"{process.id} is parked; when that is repaired: {_restart_line(process)}")
            lines += [f"  {line}" for line in process.last_log]
    waiting = [f"{queue.model}: {queue.waiting}" for queue in status.queues if queue.waiting]
    if waiting:
        lines.append("waiting in the queue: " + ", ".join(waiting))
    return lines


def _console() -> Console:
    if sys.stdout.isatty():
        return Console()
    return Console(no_color=True, force_terminal=False, width=_WIDE)


def _table(*headers: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header)
    return table


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(_cell(cell) for cell in cells))


def _cell(cell: object) -> Text:
    text = "-" if cell is None or cell == "" else str(cell)
    return Text(text, style=_COLOURS.get(text, "") if text in tuple(WorkerState) else "")  # type: ignore[call-overload]


def _of(count: int | None, limit: int | None) -> str:
    return "-" if count is None else f"{count}/{'-' if limit is None else limit}"


def _restart_line(process: ProcessStatus) -> str:
    node = process.node if isinstance(process, WorkerStatus) else LOCAL
    return f"clusterctl {'' if node == LOCAL else f'node run {node} '}restart {process.id}"


def _away_line(worker: WorkerStatus) -> str:
    if worker.node == LOCAL:
        return f"{worker.id} runs, but {AWAY}; if that lasts: clusterctl restart {worker.id}"
    return f"{worker.id}: {AWAY}; to see why: clusterctl node run {worker.node} status"
