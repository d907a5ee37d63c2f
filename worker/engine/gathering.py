"""Prompts that come to an idle engine nearly together are handed to it together.

One that went ahead would be read alone, then run alone while the others are read, and at the end they
would run without it; and a step for one takes nearly as long as one for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from worker.engine.prefill import pieces
from worker.engine.sequence import Sequence

SHARE = 0.02
"""Of the time that the reading takes, so much is waited for others."""
LONGEST_S = 0.1


def patience_s(lengths: list[int], rate: float, places: int) -> float:
    """How long prompts of these lengths wait for others, from the first one on.

    At `rate` tokens per second (0: not measured yet); `places` may run together. Not at all where no
    other could be read in the same step.
    """
    if len(lengths) >= places or (len(lengths) + 1) * max(lengths) > pieces(rate, decoding=False).of_whole:
        return 0.0
    return min(LONGEST_S, SHARE * sum(lengths) / rate) if rate else 0.0


class Gathering:
    """Owns the sequences that wait for others. Event loop only."""

    def __init__(self, hand_over: Callable[[list[Sequence]], None], places: int) -> None:
        self._hand_over = hand_over
        self._places = places
        self._loop = asyncio.get_running_loop()
        self._held: list[Sequence] = []
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, sequence: Sequence, rate: float, *, idle: bool) -> None:
        """At once, with those that are here, unless the engine is idle."""
        if not self._held:
            self._since = self._loop.time()
        self._held.append(sequence)
        lengths = [each.length for each in self._held]
        patience = patience_s(lengths, rate, self._places) if idle else 0.0
        if self._timer is not None:
            self._timer.cancel()
        if patience:
            self._timer = self._loop.call_at(self._since + patience, self._release)
        else:
            self._release()

    def remove(self, sequence: Sequence) -> bool:
        """False when it is not here."""
        if sequence not in self._held:
            return False
        self._held.remove(sequence)
        return True

    def _release(self) -> None:
        self._timer = None
        held, self._held = self._held, []
        if held:
            self._hand_over(held)
