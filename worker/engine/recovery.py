"""Which request makes the steps of a batch fail, and when the engine itself is at fault. Pure.

A step works for all rows at once, so what it raises names nobody. The rows begin anew together; those
that fail again without a token between are tried one at a time, and the one that fails then is ended
alone. Two that end so with no token of anybody between them are not to blame: the engine is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

STRIKES = 2
"""Failed steps without a token between, after which a row is a suspect."""
LONE_FAILURES = 2
"""Suspects ended one after the other, after which the engine is given up."""


@dataclass
class Recovery(Generic[T]):
    """Owns the record of failed steps."""

    _strikes: dict[T, int] = field(default_factory=dict)
    _suspects: list[T] = field(default_factory=list)
    _lone: int = 0
    given_up: bool = False

    @property
    def searching(self) -> bool:
        """Whether there are suspects, who are tried one at a time."""
        return bool(self._suspects)

    def failed(self, rows: Iterable[T]) -> T | None:
        """A step with these rows failed. The one that is to blame, or None: all begin anew."""
        rows = list(rows)
        for row in rows:
            self._strikes[row] = self._strikes.get(row, 0) + 1
        suspects = [row for row in rows if self._strikes[row] >= STRIKES]
        if len(suspects) != 1:
            self._suspects += [row for row in suspects if row not in self._suspects]
            return None
        (culprit,) = suspects
        self.left(culprit)
        self._lone += 1
        self.given_up = self._lone >= LONE_FAILURES
        return culprit

    def progressed(self, row: T) -> None:
        """It got a token: whatever failed before, it is not to blame, and neither is the engine."""
        self._lone = 0
        if row in self._strikes:
            self.left(row)

    def left(self, row: T) -> None:
        """It is not in hand any more."""
        self._strikes.pop(row, None)
        if row in self._suspects:
            self._suspects.remove(row)

    def admits(self, item: T, rows: Iterable[T]) -> bool:
        """Whether it may join these rows: while there are suspects, only they, one at a time."""
        if not self._suspects:
            return True
        return item is self._suspects[0] and not any(row in self._suspects for row in rows)
