"""Whether a cluster that is coming up has arrived, and how it goes, in words."""

from __future__ import annotations

from enum import Enum

from clusterctl.status import ClusterStatus, ProcessStatus, WorkerStatus
from protocol.states import WorkerState

SERVES = (WorkerState.READY, WorkerState.IDLE)
"""An idle worker serves whoever asks for its model."""
_HOPELESS = (WorkerState.PARKED, WorkerState.STOPPED)


class Outcome(Enum):
    """Of coming up."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"


def judge(status: ClusterStatus) -> tuple[Outcome, str]:
    """The outcome so far; unless ready, which processes are at fault or awaited."""
    hopeless = [process for process in status.processes if is_hopeless(process)]
    if hopeless:
        return Outcome.FAILED, "; ".join(_line(process) for process in hopeless)
    pending = [process for process in status.processes if process.state not in SERVES]
    if pending:
        return Outcome.PENDING, "not ready: " + "; ".join(_line(process) for process in pending)
    return Outcome.READY, ""


def is_hopeless(process: ProcessStatus) -> bool:
    """Whether it will not serve unless somebody does something."""
    return process.state in _HOPELESS


def progress_lines(status: ClusterStatus) -> dict[str, str]:
    """A line for each process, by id."""
    return {process.id: _line(process) for process in status.processes}


def _line(process: ProcessStatus) -> str:
    line = f"{process.id}: {process.state}"
    if isinstance(process, WorkerStatus) and process.state == WorkerState.LOADING:
        if process.progress is not None:
            line += f" {process.progress:.0%}"
        if process.detail:
            line += f" ({process.detail})"
    if process.last_error and process.state in (*_HOPELESS, WorkerState.FAILED):
        line += f": {process.last_error}"
    return line
