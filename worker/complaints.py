"""Log lines about what a peer does wrong: counted always, written seldom. Pure."""

from __future__ import annotations

from collections import Counter

PAUSE_S = 10.0


class Complaints:
    """Owns the counts of each kind of fault."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}

    def count(self, kind: str, now: float) -> int:
        """One more of that kind. How many there were, where that should be written now; else 0."""
        self.counts[kind] += 1
        if now - self._said_at.get(kind, float("-inf")) < PAUSE_S:
            return 0
        self._said_at[kind] = now
        return self.counts[kind]
