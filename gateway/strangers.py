"""Peers that are not registered: how often they are asked who they are, and why they were refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.config import HeartbeatConfig

MAX_REFUSALS = 256
_MANY = 1000


class Strangers:
    """Owns until when each is left alone, and the last reasons, by worker."""

    def __init__(self, heartbeat: HeartbeatConfig) -> None:
        self._heartbeat = heartbeat
        self._left_alone: dict[bytes, float] = {}
        self._refusals: dict[str, str] = {}

    def registered(self, connection: bytes, worker_id: str) -> None:
        """It is none any more."""
        self._left_alone.pop(connection, None)
        self._refusals.pop(worker_id, None)

    def should_ask(self, connection: bytes, now: float) -> bool:
        """Whether it should be asked who it is: not at each message."""
        if now < self._left_alone.get(connection, now):
            return False
        if len(self._left_alone) > _MANY:
            self._left_alone = {peer: until for peer, until in self._left_alone.items() if until > now}
        self._left_alone[connection] = now + self._heartbeat.interval_s
        return True

    def refuse(self, connection: bytes, now: float) -> bool:
        """Leave it alone for a while. False when that was so already."""
        again = now < self._left_alone.get(connection, now)
        self._left_alone[connection] = now + self._heartbeat.lost_s
        return not again

    def refused(self, worker_id: str, why: str) -> None:
        """Keep the reason for the state page, until the worker is taken."""
        self._refusals.pop(worker_id, None)
        self._refusals[worker_id] = why
        if len(self._refusals) > MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]

    def refusals(self) -> Mapping[str, str]:
        """Why workers, by id, were refused and are not there."""
        return self._refusals
