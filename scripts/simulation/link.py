"""Connections between workers and gateways, with their latency and the ways in which they break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.messages import GatewayMessage, WorkerMessage
from scripts.simulation.clock import Clock

CLOSES_S = 6.0
"""A connection on which nothing arrives breaks after so long (ZMTP's heartbeat)."""


class GatewaySide(Protocol):
    """Who listens at the gateway's end."""

    name: str
    up: bool

    def connected(self, link: Link) -> None: ...

    def disconnected(self, link: Link) -> None: ...

    def receive(self, link: Link, message: WorkerMessage) -> None: ...


class WorkerSide(Protocol):
    """Who listens at the worker's end."""

    name: str

    def receive(self, link: Link, message: GatewayMessage) -> None: ...

    def lost(self, link: Link) -> None: ...


@dataclass(eq=False)
class Link:
    """One connection; messages of one direction keep their order."""

    clock: Clock
    worker: WorkerSide
    gateway: GatewaySide
    connection: bytes
    latency_s: float
    heard_at: float
    """When the worker last got something."""
    open: bool = True
    blocked: bool = False
    """Nothing passes, and neither side knows."""

    def up(self, message: WorkerMessage) -> None:
        if self.open and not self.blocked:
            self.clock.at(self.clock.now + self.latency_s, self.gateway.receive, self, message)

    def down(self, message: GatewayMessage) -> None:
        if not self.blocked:
            self.clock.at(self.clock.now + self.latency_s, self.worker.receive, self, message)

    def close(self) -> None:
        """By the worker. What was sent before arrives before."""
        if self.open:
            self.open = False
            after_s = CLOSES_S if self.blocked else self.latency_s
            self.clock.at(self.clock.now + after_s, self.gateway.disconnected, self)
