"""The fleet at a glance, as `clusterctl top` and the dashboard show it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.console import Group
from rich.table import Table

from clusterctl.admin import Failure
from clusterctl.status import ClusterStatus, WorkerStatus
from clusterctl.status_view import of, remarks, state_words
from clusterctl.tables import add_row, new_table, plain
from protocol.states import WorkerState

_BAR = 8
_KEPT = 16
"""Speeds of a worker that are drawn."""
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MOST_FAILURES = 5


@dataclass
class Speeds:
    """What each worker generated lately, in tokens per second; those that are gone are forgotten."""

    by_worker: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, workers: Iterable[WorkerStatus]) -> None:
        seen = {worker.id: speed(worker) for worker in workers}
        self.by_worker = {
            worker_id: deque([*self.by_worker.get(worker_id, ()), now], maxlen=_KEPT)
            for worker_id, now in seen.items()
        }


class _Column(NamedTuple):
    header: str
    least: int
    """A terminal of so many columns has room for it."""
    cell: Callable[[WorkerStatus], object]


def top_view(
    status: ClusterStatus,
    failures: Iterable[Failure],
    speeds: Mapping[str, Iterable[float]],
    width: int,
) -> Group:
    """For a terminal of so many columns; the narrower it is, the less is told of each worker."""
    failed = [_failure_line(failure) for failure in list(failures)[:_MOST_FAILURES]]
    return Group(
        plain(totals(status), style="bold"),
        _gateways(status),
        _workers(status, speeds, width),
        *(plain(line) for line in remarks(status)),
        *([plain("requests that failed:"), *(plain(f"  {line}") for line in failed)] if failed else []),
    )


def totals(status: ClusterStatus) -> str:
    """The whole fleet in a line."""
    workers = status.workers
    ready = sum(worker.state == WorkerState.READY for worker in workers)
    waiting = sum(w.waiting or 0 for w in workers) + sum(g.queued or 0 for g in status.gateways)
    return " · ".join(
        (
            f"{ready} of {len(workers)} workers ready",
            f"{sum(worker.running or 0 for worker in workers)} running",
            f"{waiting} waiting",
            f"{sum(map(speed, workers)):.1f} tokens/s",
            f"{megabytes(sum(worker.resident_mb or 0 for worker in workers))} of models",
        )
    )


def speed(worker: WorkerStatus) -> float:
    """Tokens per second at present: one that has nothing to do still says how fast it was."""
    return (worker.decode_tokens_per_s or 0.0) if worker.running else 0.0


def seconds(value: float | None) -> str | None:
    """A time as people read it."""
    if value is None:
        return None
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def megabytes(value: int) -> str:
    """Memory as people read it, of so many MiB."""
    return f"{value / 1024:.1f} GB" if value >= 1024 else f"{value} MB"


def load_bar(running: int | None, most: int | None) -> str:
    """How much of a worker is taken, drawn and in figures."""
    share = min(1.0, (running or 0) / most) if most else 0.0
    filled = max(round(share * _BAR), 1 if running else 0)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {of(running, most)}"


def spark(values: Iterable[float]) -> str:
    """A line of small bars, the greatest of which is the highest."""
    known = list(values)
    most = max(known, default=0.0)
    if not most:
        return ""
    return "".join(_HEIGHTS[round(value / most * (len(_HEIGHTS) - 1))] for value in known)


def _gateways(status: ClusterStatus) -> Table:
    table = new_table("gateway", "state", "url", "streams", "queued", "restarts")
    for gateway in status.gateways:
        cells = (gateway.url, gateway.streams, gateway.queued, gateway.restarts)
        add_row(table, gateway.id, gateway.state, *cells)
    return table


def _workers(status: ClusterStatus, speeds: Mapping[str, Iterable[float]], width: int) -> Table:
    shown = [column for column in _columns(speeds) if width >= column.least]
    table = new_table(*(column.header for column in shown))
    for worker in status.workers:
        add_row(table, *(column.cell(worker) for column in shown))
    return table


def _columns(speeds: Mapping[str, Iterable[float]]) -> Iterable[_Column]:
    return (
        _Column("worker", 0, lambda worker: worker.id),
        _Column("state", 0, state_words),
        _Column("model", 100, lambda worker: worker.model),
        _Column("node", 130, lambda worker: worker.node),
        _Column("running", 0, lambda worker: load_bar(worker.running, worker.max_num_seqs)),
        _Column("waiting", 0, lambda worker: of(worker.waiting, worker.max_waiting)),
        _Column("tokens/s", 0, lambda worker: f"{speed(worker):.1f}"),
        _Column("lately", 130, lambda worker: spark(speeds.get(worker.id, ()))),
        _Column("first token", 0, lambda worker: seconds(worker.first_token_s)),
        _Column("memory", 0, _memory),
        _Column("restarts", 90, lambda worker: worker.restarts),
        _Column("rejected", 110, lambda worker: worker.rejected),
        _Column("breaker", 150, lambda worker: worker.breaker),
        _Column("heartbeat", 150, lambda worker: seconds(worker.heartbeat_age_s)),
    )


def _memory(worker: WorkerStatus) -> str | None:
    if not worker.resident_mb:
        return None
    of_all = f" of {megabytes(worker.memory_mb)}" if worker.memory_mb else ""
    return f"{megabytes(worker.resident_mb)}{of_all}"


def _failure_line(failure: Failure) -> str:
    ago = failure.age_s
    told = f"{ago} s" if ago < 60 else f"{ago // 60} min" if ago < 3600 else f"{ago // 3600} h"
    return f"{failure.code}: {failure.model}, {failure.id}, {told} ago"
