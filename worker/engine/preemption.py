"""Who gives up its cache when memory runs out, and when it comes back. Pure.

The newest goes first, and of those that went the oldest comes back first, before anything new. It comes
back once clearly less is in hand than when it went, or nothing else is: so each return follows the end
of another request, the oldest always goes on, and nobody comes and goes without end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

COMEBACK = 0.9
"""Of the tokens that were in hand when it went, so many may be when it is back."""


@dataclass
class Preemption(Generic[T]):
    """Owns the record of those that went. Tokens are those of prompts and answers so far."""

    budget: int | None = None
    """Tokens that the rows may hold together; None: as memory allows."""
    count: int = 0
    """How often one had to go."""
    _out: dict[T, int] = field(default_factory=dict)
    """The newest first; with each the tokens that were in hand when it went, its own included."""

    @property
    def anyone(self) -> bool:
        return bool(self._out)

    def too_much(self, in_hand: int) -> bool:
        return self.budget is not None and in_hand > self.budget

    def went(self, item: T, in_hand: int) -> None:
        self._out[item] = in_hand
        self.count += 1

    def left(self, item: T) -> None:
        """It is back among the rows, or was ended."""
        self._out.pop(item, None)

    def clear(self) -> None:
        """The rows are empty: who went, went for nothing any more."""
        self._out.clear()

    def has_turn(self, item: T) -> bool:
        return not self._out or item == next(reversed(self._out))

    def has_room(self, item: T, tokens: int, in_hand: int) -> bool:
        """Beside the rows. Alone, everything has: what does not fit ends in words."""
        if not in_hand:
            return True
        if item in self._out:
            return in_hand + tokens <= COMEBACK * self._out[item]
        return not self.too_much(in_hand + tokens)
