"""Whether a worker fits into a machine beside those that are configured for it: looked up, and told."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from clusterctl import operations
from clusterctl.machine_memory import read_machine
from clusterctl.memory_fit import Fit
from clusterctl.model_sizes import fit
from clusterctl.runner import LocalRunner, RunnerTimeoutError
from protocol.addresses import LOCAL, models_folder
from protocol.config import WorkerConfig


def fit_here(worker: WorkerConfig, others: Sequence[WorkerConfig]) -> Fit:
    """That worker and those of the others that run on this machine. Raises `OperationError`."""
    try:
        machine = read_machine(LocalRunner(), sys.executable)
    except RunnerTimeoutError as error:
        raise operations.OperationError(f"this machine does not tell its memory: {error}") from error
    if machine is None:
        raise operations.OperationError("this machine does not tell its memory (sysctl, /proc/meminfo)")
    beside = [other for other in others if other.node == LOCAL and other.id != worker.id]
    return fit(machine, [*beside, worker], models_folder(os.environ))


def refuse_unless_it_fits(found: Fit, worker_id: str) -> None:
    """Raises `RefusedError` with the arithmetic."""
    if found.fits:
        return
    raise operations.RefusedError(
        "\n".join(
            [
                f"{worker_id} does not fit into the memory of this machine; {found.advice(worker_id)}",
                *found.lines(),
            ]
        )
    )


def document(found: Fit, advice: str) -> dict[str, Any]:
    """For programs; all sizes are bytes."""
    workers = [
        {
            "id": need.asked.worker_id,
            "bytes": need.total,
            "weights": need.weights,
            "kv": need.kv,
            "kv_all_places": need.full_kv,
            "prefix_cache": need.prefix_cache,
            "working": need.working,
            "process": need.process,
            "unknown": need.unknown or None,
        }
        for need in found.needs
    ]
    has = found.machine
    machine = {"memory": has.memory, "reserve": has.reserve, "ceiling": has.ceiling}
    return {"fits": found.fits, "bytes": found.total, **machine, "workers": workers, "advice": advice or None}
