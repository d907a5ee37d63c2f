"""Who of those that wait may join the rows: after failed steps, without memory, with a common beginning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.engine.preemption import Preemption
from worker.engine.prefix_cache import PrefixCache
from worker.engine.recovery import Recovery
from worker.engine.sequence import Sequence


@dataclass
class Turns:
    """Owns the records by which some have to wait. Engine thread only."""

    recovery: Recovery[Sequence]
    preemption: Preemption[Sequence]
    prefixes: PrefixCache

    def admits(self, here: list[Sequence]) -> Callable[[Sequence], bool]:
        """Who may join those that are here, asked in the order of their ranks.

        Of those that begin alike, one is read first, and the others go on from there.
        """
        before: list[list[int]] = []
        in_hand = sum(sequence.length for sequence in here)
        warm = True

        def admits(sequence: Sequence) -> bool:
            nonlocal in_hand, warm
            ids = sequence.ids
            if not self._has_turn(sequence, here):
                return False
            if not self.preemption.has_room(sequence, len(ids), in_hand) or self.prefixes.gains(ids, before):
                return False
            in_hand += len(ids)
            before.append(ids)
            warm = warm and self.prefixes.warm(ids)
            return warm

        return admits

    def left(self, sequence: Sequence) -> None:
        """It is not in hand any more."""
        self.recovery.left(sequence)
        self.preemption.left(sequence)

    def _has_turn(self, sequence: Sequence, here: list[Sequence]) -> bool:
        if self.recovery.searching:  # with an order of its own
            return self.recovery.admits(sequence, here)
        return self.preemption.has_turn(sequence)
