"""What the nodes say of workers that no gateway knows, put into the picture."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from clusterctl.node_workers import Witness, witnesses
from clusterctl.nodes import Node, installed_version
from clusterctl.operations import OperationError
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.status import AWAY, ClusterStatus, WorkerStatus
from protocol.addresses import LOCAL, Home
from protocol.config import ClusterConfig
from protocol.states import WorkerState

_AT_ONCE = 16
_SAID_THERE = (WorkerState.PARKED, WorkerState.FAILED, WorkerState.STOPPED)


def with_witnesses(home: Home, config: ClusterConfig, status: ClusterStatus) -> ClusterStatus:
    """With the word of their machines for workers that are connected to no gateway; all are asked at once."""
    away = {worker.node for worker in status.workers if worker.node != LOCAL and worker.detail == AWAY}
    nodes = [Node(entry, home) for entry in config.nodes if entry.name in away]
    if not nodes:
        return status
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = dict(zip((node.name for node in nodes), pool.map(_ask, nodes), strict=True))
    workers = (_told(worker, told.get(worker.node, ())) for worker in status.workers)
    return msgspec.structs.replace(status, workers=tuple(workers))


def _ask(node: Node) -> Iterable[Witness] | str:
    """Why it cannot tell, where it cannot."""
    try:
        return witnesses(node, installed_version(node))
    except (HostUnreachableError, RunnerTimeoutError, OperationError) as error:
        return str(error)


def _told(worker: WorkerStatus, told: Iterable[Witness] | str) -> WorkerStatus:
    if worker.detail != AWAY:
        return worker
    if isinstance(told, str):
        return msgspec.structs.replace(worker, last_error=told)
    found = next((w for w in told if w.id == worker.id and w.state in _SAID_THERE), None)
    if found is None:
        return worker
    return msgspec.structs.replace(
        worker,
        state=found.state,
        detail="",
        restarts=found.restarts,
        last_exit=found.last_exit,
        last_error=found.last_error,
        last_log=found.last_log,
    )
