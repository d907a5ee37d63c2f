"""The picture of the cluster as tables, and in lines beneath them what somebody should know or do. Pure."""

from __future__ import annotations

from rich.console import Group

from clusterctl.progress import SERVES
from clusterctl.status import AWAY, ClusterStatus, ProcessStatus, WorkerStatus
from clusterctl.tables import add_row, new_table, plain
from protocol.addresses import LOCAL
from protocol.states import WorkerState


def status_view(status: ClusterStatus) -> Group:
    """As `clusterctl status` shows it."""
    gateways = new_table("gateway", "state", "url", "pid", "streams", "queued", "restarts")
    for gateway in status.gateways:
        cells = (gateway.url, gateway.pid, gateway.streams, gateway.queued, gateway.restarts)
        add_row(gateways, gateway.id, gateway.state, *cells)
    workers = new_table(
        "worker", "state", "model", "pid", "memory", "running", "waiting", "rejected", "restarts"
    )
    for worker in status.workers:
        add_row(
            workers,
            worker.id,
            state_words(worker),
            worker.model,
            worker.pid,
            f"{worker.resident_mb} MB" if worker.resident_mb else None,
            of(worker.running, worker.max_num_seqs),
            of(worker.waiting, worker.max_waiting),
            worker.rejected,
            worker.restarts,
        )
    return Group(gateways, workers, *(plain(line) for line in remarks(status)))


def state_words(worker: WorkerStatus) -> str:
    """Its state, and how far it is with loading."""
    if worker.state == WorkerState.LOADING and worker.progress is not None:
        return f"{worker.state} {worker.progress:.0%}"
    return worker.state


def of(count: int | None, limit: int | None) -> str:
    """How many of how many."""
    return "-" if count is None else f"{count}/{'-' if limit is None else limit}"


def remarks(status: ClusterStatus) -> list[str]:
    """A line for whatever is wrong, with what to do about it."""
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


def _restart_line(process: ProcessStatus) -> str:
    node = process.node if isinstance(process, WorkerStatus) else LOCAL
    return f"clusterctl {'' if node == LOCAL else f'node run {node} '}restart {process.id}"


def _away_line(worker: WorkerStatus) -> str:
    if worker.node == LOCAL:
        return f"{worker.id} runs, but {AWAY}; if that lasts: clusterctl restart {worker.id}"
    return f"{worker.id}: {AWAY}; to see why: clusterctl node run {worker.node} status"
