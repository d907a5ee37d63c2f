"""What is counted of requests while they pass: read by `/metrics`. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict

from gateway import measures
from gateway.flight import Flight
from gateway.spread import Spread
from protocol.api_keys import PRIORITIES


class Tally:
    def __init__(self) -> None:
        self.retries: Counter[str] = Counter()
        """Attempts that began anew, as the one before brought nothing, by what ended that one."""
        self.takeovers: Counter[str] = Counter()
        """Attempts that went on where another one had come to, by what ended that one."""
        self.beginnings: Counter[tuple[str, bool]] = Counter()
        """Requests that were placed by their beginning: the model, and whether it was found there."""
        self._queued: dict[tuple[str, str], Spread] = defaultdict(lambda: Spread(measures.QUEUED.buckets))
        self._gaps: dict[str, Spread] = defaultdict(lambda: Spread(measures.BETWEEN_TOKENS.buckets))

    def begun(self, flight: Flight, *, found: bool | None) -> None:
        """A worker began it; `found`: whether its prompt's beginning was there, None where it has none."""
        if flight.attempt:
            return
        self.queued(flight.model, flight.request.priority).add(flight.sent_at - flight.life.came_at)
        if found is not None:
            self.beginnings[flight.model, found] += 1

    def queued(self, model: str, priority: str) -> Spread:
        """Seconds until a request was sent to the worker that began it first."""
        return self._queued[model, priority]

    def gaps(self, model: str) -> Spread:
        """Seconds between two steps of one answer."""
        return self._gaps[model]

    def forget(self, model: str) -> None:
        """Nobody serves it any more."""
        self._gaps.pop(model, None)
        for priority in PRIORITIES:
            self._queued.pop((model, priority), None)
        for found in (True, False):
            self.beginnings.pop((model, found), None)
