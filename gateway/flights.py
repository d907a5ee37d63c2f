"""All requests of a gateway by their ids. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.flight import Flight
from protocol.messages import Result


class Flights:
    """Owns which requests there are; what becomes of them is decided elsewhere."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self.get = self._flights.get
        """Looked at for each token."""

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        """Those of now: they may be taken out meanwhile."""
        return iter(tuple(self._flights.values()))

    def __getitem__(self, request_id: str) -> Flight:
        return self._flights[request_id]

    def add(self, flight: Flight) -> None:
        self._flights[flight.request_id] = flight
        flight.trial.join(flight)

    def take_out(self, request_id: str) -> Flight | None:
        flight = self._flights.pop(request_id, None)
        if flight is not None:
            flight.trial.leave(flight)
        return flight

    def at(self, connection: bytes) -> list[Flight]:
        """Those that this worker has."""
        return [flight for flight in self._flights.values() if flight.connection == connection]

    def attempt(self, connection: bytes, request_id: str, attempt: int) -> Flight | None:
        """The one that a worker speaks of, unless it was taken from it meanwhile."""
        flight = self.get(request_id)
        if flight is None or (flight.connection, flight.attempt) != (connection, attempt):
            return None
        return flight

    def result(self, connection: bytes, message: Result) -> None:
        """What one asked for that has no stream; its end comes behind."""
        flight = self.attempt(connection, message.request_id, message.attempt)
        if flight is not None:
            flight.outlet.result(message)

    @property
    def running(self) -> int:
        """Those at a worker."""
        return sum(bool(flight.connection) for flight in self._flights.values())

    def running_by_model(self) -> dict[str, int]:
        """How many of each model are at a worker."""
        counts: dict[str, int] = {}
        for flight in self._flights.values():
            counts[flight.model] = counts.get(flight.model, 0) + bool(flight.connection)
        return counts
