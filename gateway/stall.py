"""Whether a worker that beats still works on what it was sent. Pure.

The worker looks after its engine itself, and ends when that hangs; this is for one that does not.
"""

from __future__ import annotations

import math

from gateway.flight import Flight
from gateway.registry import WorkerView


def hangs(worker: WorkerView, stall_s: float) -> bool:
    """Whether it has work, and its engine made no step for so long, as its last heartbeat says."""
    return worker.step_age_s >= stall_s


def stalled(flight: Flight, worker: WorkerView, stall_s: float, now: float) -> str:
    """Why the request does not get on there; empty while it may."""
    if hangs(worker, stall_s):
        return f"its engine made no step for {worker.step_age_s:.0f} s"
    if worker.load.running or worker.load.waiting:
        flight.missed_since = math.inf
        return ""
    # What it said of the request's end may have been lost.
    flight.missed_since = min(flight.missed_since, now)
    return "it knows nothing of it" if now - flight.missed_since >= stall_s else ""
