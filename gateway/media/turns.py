"""A bounded number of turns at something slow, of which nobody can take all. On the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter


class Turns:
    """Who asks has a turn more only while more are free than he has: the first one half of all at most, the
    next one half of the rest. Who has to wait stands in line; who has least is the next."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._had: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def take(self, asker: str) -> None:
        """Wait for a turn. Whoever has it gives it back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((asker, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((asker, turn))
            else:
                self.give_back(asker)
            raise

    def give_back(self, asker: str) -> None:
        self._had[asker] -= 1
        if not self._had[asker]:
            del self._had[asker]
        self._grant()

    def _grant(self) -> None:
        while free := self._number - self._had.total():
            able = [one for one in self._waiting if self._had[one[0]] < free and not one[1].done()]
            if not able:
                return
            asker, turn = first = min(able, key=lambda one: self._had[one[0]])
            self._waiting.remove(first)
            self._had[asker] += 1
            turn.set_result(None)
