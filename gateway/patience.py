"""How long a connection may stand still: slow heads, idle ones, clients that do not read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protocol.config import LimitsConfig

KEEP_ALIVE_S = 75.0
"""Longer than clients keep idle connections, so that they close first."""


class Phase(Enum):
    """What a connection waits for."""

    HEAD = "the head of a request"
    """Its first one, or one that has begun: bytes that trickle in buy no time."""
    IDLE = "the next request"
    ANSWER = "the answer"
    """Limits of its own apply to the body and to the answer."""


@dataclass(frozen=True)
class Standing:
    """How a connection stands at the moment."""

    phase: Phase
    requests: int
    """Begun on it so far."""
    unsent: int
    """Bytes that the client has not taken yet."""


class Patience:
    """Owns the clock of one connection: since when nothing has moved."""

    def __init__(self, limits: LimitsConfig, now: float) -> None:
        self._limits = limits
        self._last = Standing(Phase.HEAD, 0, 0)
        self._since = now

    def is_over(self, now: float, standing: Standing) -> bool:
        """Whether the connection, which stands like this now, has stood like this for too long."""
        if self._moved(standing):
            self._since = now
        self._last = standing
        return now - self._since >= self._limit_s(standing)

    def _moved(self, standing: Standing) -> bool:
        last = self._last
        if (standing.phase, standing.requests) != (last.phase, last.requests):
            return True
        return standing.unsent < last.unsent or (standing.unsent > 0 and last.unsent == 0)

    def _limit_s(self, standing: Standing) -> float:
        if standing.unsent:
            return self._limits.stream_stall_s
        if standing.phase is Phase.HEAD:
            return self._limits.body_timeout_s
        return KEEP_ALIVE_S if standing.phase is Phase.IDLE else float("inf")
