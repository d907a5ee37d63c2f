"""How values are spread over buckets, as Prometheus tells it. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Spread:
    """Counts values by the first bound that they do not exceed. One is fed with each token."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: ascending; what exceeds the last is counted, too."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Bound and how many values are at most that, the last one for all of them."""
        told: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            told.append((bound, float(total)))
        return told
