"""What the nodes say of workers that no gateway knows, put into the picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

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
_SOON_S = 1.0
_SAID_THERE = (WorkerState.PARKED, WorkerState.FAILED, WorkerState.STOPPED)


def with_witnesses(home: Home, config: ClusterConfig, status: ClusterStatus) -> Iterator[ClusterStatus]:
    """With the word of their machines for workers that are connected to no gateway; all are asked at once.

    Twice where a machine takes longer: what is known within a second, then all of it.
    """
    away = {worker.node for worker in status.workers if worker.node != LOCAL and worker.detail == AWAY}
    nodes = [Node(entry, home) for entry in config.nodes if entry.name in away]
    if not nodes:
        yield status
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {node.name: pool.submit(_ask, node) for node in nodes}
        if late := wait(asked.values(), _SOON_S).not_done:
            yield _picture(
                status,
                {
                    name: f"{name} has not answered yet" if answer in late else answer.result()
                    for name, answer in asked.items()
                },
            )
        yield _picture(status, {name: answer.result() for name, answer in asked.items()})


def _picture(status: ClusterStatus, told: Mapping[str, Iterable[Witness] | str]) -> ClusterStatus:
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
