"""Whether a client's request is what its workers die of: all its choices are tried as one. Pure."""

from __future__ import annotations

import math
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
    them. Whoever is sent after a death and has a token shows that it was not the request's fault; but of
    those that the dead worker had, each has to show that for itself.
    """

    def __init__(self, name: str = "") -> None:
        """`name`: of a request with several choices; no two have the same."""
        self.name = name
        self._flights: list[Flight] = []
        self._had: dict[bytes, set[Flight]] = {}
        """By the connections of the dead: who was there without a token, and has none since."""
        self._unexplained: set[bytes] = set()
        """The dead since one that was sent after the last of them had a token."""
        self._since = -math.inf
        self._acquitted = False
        self._poison = False

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
        for suspects in self._had.values():
            suspects.discard(flight)
        if flight.sent_at >= self._since:
            self._acquitted = True
            self._unexplained.clear()

    def died(self, flight: Flight, worker: WorkerView, now: float, *, silent: bool) -> int:
        """Its worker is gone: how many died of the request, as it seems.

        A cut network silences many workers at once, so all that were `silent` before count as one.
        """
        self.look()
        if flight.progressed:
            return 0
        self._had.setdefault(worker.connection, set()).add(flight)
        self._unexplained.add(_SILENCE if silent else worker.connection)
        self._since = now
        own = sum(flight in suspects for suspects in self._had.values())
        deaths = max(own, len(self._unexplained))
        self._poison = self._poison or deaths >= POISON_DEATHS
        return deaths

    def admitted(self, free: list[WorkerView]) -> list[WorkerView]:
        """Those of the workers that one of them more may be sent to now."""
        if self._poison:
            return []
        if not self._is_harmless:
            self.look()
        if self._is_harmless:
            return free
        held = {flight.connection for flight in self._flights if flight.connection and not flight.progressed}
        if len(held) + len(self._unexplained) < POISON_DEATHS:
            return free
        # Not into a waiting room: they would stay there when more workers may have them.
        return [view for view in free if view.connection in held and view.has_slot]

    @property
    def _is_harmless(self) -> bool:
        return self._acquitted and not self._unexplained
