"""One request on its way through the cluster, and the two ports through which it acts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from gateway.queue import Ticket
from gateway.registry import WorkerView
from protocol.errors import ClusterError
from protocol.messages import Delta, Finished, GatewayMessage, Generate, Started


class Sent(Enum):
    """What became of a message to a worker."""

    OK = "ok"
    BUSY = "busy"
    """Its pipe is full."""
    LOST = "lost"
    """There is no such peer any more."""


class Transport(Protocol):
    """The way to the workers. Never blocks."""

    def send(self, connection: bytes, message: GatewayMessage) -> Sent: ...


class Outlet(Protocol):
    """Where the answer to one request goes. `finished` or `failed` comes exactly once, last."""

    def started(self, worker: WorkerView, message: Started) -> None: ...

    def delta(self, delta: Delta) -> None: ...

    def finished(self, worker: WorkerView, message: Finished) -> None: ...

    def failed(self, error: ClusterError) -> None: ...


@dataclass(eq=False, slots=True)
class Flight:
    """A request that is queued (`connection` is empty) or at a worker."""

    number: int
    request: Generate
    model: str
    outlet: Outlet
    size: int
    deadline: float
    connection: bytes = b""
    attempt: int = 0
    confirmed: bool = False
    sent_at: float = math.inf
    began: bool = False
    """A delta came: from here on no other worker can take over."""
    ticket: Ticket | None = None
    """Its place in the line, kept when it leaves: who comes back stands where it stood."""
    tried: set[str] = field(default_factory=set)
    """Workers that were asked since it last stood in the line."""
    deaths: int = 0
    """Workers that died with it before it had any token."""
    engine_failures: int = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id
