"""What a request does not get in time: its whole answer, a word that a worker has it, progress. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.flight import Flight
from gateway.registry import Registry, WorkerView
from gateway.stall import stalled
from protocol.config import ClusterConfig
from protocol.errors import ClusterError, ErrorCode


@dataclass(frozen=True, slots=True)
class Missed:
    """A deadline that is over."""

    error: ClusterError
    """What the client is told, should nobody else answer."""
    worker: WorkerView | None = None
    """Whose fault it is; None: the time for the whole answer is over."""
    what: str = ""
    """What that does."""
    hangs: bool = False
    """It took the request, and does not get on with it."""


class Deadlines:
    """The rules of one configuration."""

    def __init__(self, config: ClusterConfig, registry: Registry) -> None:
        self._routing = config.routing
        self._suspect_s = config.heartbeat.suspect_s
        self._registry = registry

    def missed(self, flight: Flight, now: float) -> Missed | None:
        """What the request should have had by now; None while it may wait."""
        if flight.deadline <= now:
            return Missed(ClusterError(ErrorCode.DEADLINE_EXCEEDED, "the time for the answer is over"))
        worker = self._registry.at(flight.connection)
        if worker is None:
            return None
        return self._progress(flight, worker, now) if flight.confirmed else self._answer(flight, worker, now)

    def _answer(self, flight: Flight, worker: WorkerView, now: float) -> Missed | None:
        """From a worker that beats. A silent one may be lost; that is found soon."""
        silent = now - worker.heartbeat_at >= self._suspect_s
        if silent or now - flight.sent_at < self._routing.answer_timeout_s:
            return None
        error = ClusterError(ErrorCode.NO_WORKER_AVAILABLE, "no worker answered in time; ask again")
        return Missed(error, worker, "does not answer")

    def _progress(self, flight: Flight, worker: WorkerView, now: float) -> Missed | None:
        why = stalled(flight, worker, self._routing.stall_s, now)
        if not why:
            return None
        message = f"the worker {worker.worker_id} stalls: {why}; ask again"
        return Missed(ClusterError(ErrorCode.WORKER_LOST, message), worker, f"stalls: {why}", hangs=True)
