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
        if self._may_have(asker):  # who waits may not, or would not wait
            self._had[asker] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((asker, turn))
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

    def _may_have(self, asker: str) -> bool:
        return self._had[asker] < self._number - self._had.total()

    def _grant(self) -> None:
        while able := [one for one in self._waiting if self._may_have(one[0]) and not one[1].done()]:
            asker, turn = first = min(able, key=lambda one: self._had[one[0]])
            self._waiting.remove(first)
            self._had[asker] += 1
            turn.set_result(None)
