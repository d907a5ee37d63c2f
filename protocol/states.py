"""The life of a worker as a table, and the exit codes by which processes tell why they ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    """The process runs; nothing is read yet."""
    LOADING = "loading"
    """Weights are being read."""
    WARMING = "warming"
    """The first token is being generated."""
    READY = "ready"
    """It generated a token and takes requests."""
    DRAINING = "draining"
    """It takes nothing new and finishes what it has; to end, to free its weights, or to be left alone."""
    STOPPED = "stopped"
    """The process has ended, or is about to."""
    IDLE = "idle"
    """The process runs without weights and loads them on demand."""
    FAILED = "failed"
    """It cannot serve; the process ends or has ended with a fault."""
    PARKED = "parked"
    """The supervisor gave up restarting it."""


_ENDS = frozenset({WorkerState.STOPPED, WorkerState.FAILED})

WORKER_TRANSITIONS: Mapping[WorkerState, frozenset[WorkerState]] = {
    WorkerState.STARTING: _ENDS | {WorkerState.LOADING, WorkerState.IDLE},
    WorkerState.LOADING: _ENDS | {WorkerState.WARMING},
    WorkerState.WARMING: _ENDS | {WorkerState.READY},
    WorkerState.READY: _ENDS | {WorkerState.DRAINING, WorkerState.IDLE},
    WorkerState.DRAINING: _ENDS | {WorkerState.READY, WorkerState.IDLE},
    WorkerState.IDLE: _ENDS | {WorkerState.LOADING, WorkerState.DRAINING},
    WorkerState.STOPPED: frozenset({WorkerState.STARTING}),
    WorkerState.FAILED: frozenset({WorkerState.STARTING, WorkerState.PARKED, WorkerState.STOPPED}),
    WorkerState.PARKED: frozenset({WorkerState.STARTING, WorkerState.STOPPED}),
}


class TransitionError(RuntimeError):
    """A change of state that the table does not list: a mistake of ours."""


def move(old: WorkerState, new: WorkerState) -> WorkerState:
    """`new`, when the table lets a worker go there from `old`. Raises `TransitionError`."""
    if new not in WORKER_TRANSITIONS[old]:
        raise TransitionError(f"a worker cannot go from {old} to {new}")
    return new


class ExitCode(IntEnum):
    """Why a gateway or worker process ended (BSD sysexits where one fits)."""

    OK = 0
    FAULT = 70
    """Something broke; a restart may help."""
    RESTART = 75
    """Asked to restart."""
    MISCONFIGURED = 78
    """A restart will not help until a person changes something."""
