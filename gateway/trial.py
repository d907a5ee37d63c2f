"""Whether a client's request is what its workers die of: all its choices are tried as one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.registry import WorkerView

if TYPE_CHECKING:
    from gateway.flight import Flight

POISON_DEATHS = 2
"""So many workers that died with a request before it had a token are taken to have died of it."""

_SILENCE = b""


class Trial:
    """The choices of one client's request, and the workers that died with one of them before its first token.

    Until a choice has a token, and again after a death, no more workers get them at one time than may die of
    them. A death is forgotten as soon as all that the worker had of them have a token elsewhere.
    """

    def __init__(self, name: str = "") -> None:
        """`name`: of a request with several choices; no two have the same."""
        self.name = name
        self._flights: list[Flight] = []
        self._deaths: dict[bytes, set[Flight]] = {}
        """By the connections of the dead: who was there without a token."""
        self._acquitted = False

    def join(self, flight: Flight) -> None:
        self._flights.append(flight)

    def leave(self, flight: Flight) -> None:
        """It is over, in whichever way."""
        self._flights.remove(flight)

    def look(self) -> None:
        """Note which have a token where they are now; before one of them leaves its worker."""
        for flight in self._flights:
            if flight.connection and flight.progressed:
                self.acquit(flight)

    def acquit(self, flight: Flight) -> None:
        """It has a token, or its end."""
        self._acquitted = True
        for suspects in self._deaths.values():
            suspects.discard(flight)
        self._deaths = {dead: suspects for dead, suspects in self._deaths.items() if suspects}

    def died(self, flight: Flight, worker: WorkerView, *, silent: bool) -> int:
        """Its worker is gone: how many died of the request, as it seems.

        A cut network silences many workers at once. So all that were `silent` before count as one, as long as
        it does not happen to the same choice again.
        """
        self.look()
        if flight.progressed:
            return 0
        first = silent and flight not in self._deaths.get(_SILENCE, ())
        self._deaths.setdefault(_SILENCE if first else worker.connection, set()).add(flight)
        return len(self._deaths)

    def admitted(self, free: list[WorkerView]) -> list[WorkerView]:
        """Those of the workers that one of them more may be sent to now."""
        if self._acquitted and not self._deaths:
            return free
        self.look()
        held = {flight.connection for flight in self._flights if flight.connection and not flight.progressed}
        if len(held) + len(self._deaths) < POISON_DEATHS:
            return free
        # Not into a waiting room: they would stay there when more workers may have them.
        return [view for view in free if view.connection in held and view.has_slot]
