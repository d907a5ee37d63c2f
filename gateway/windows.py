"""A limit of so many a minute, as a sliding window counts it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUTE_S = 60
_JUST_AFTER_S = 0.001


@dataclass(frozen=True)
class Window:
    """What was taken in this minute and in the one before, of which the part counts that is not yet past.

    The times are those of the library `limits`: until each of them counts no more.
    """

    limit: int
    previous: int
    previous_ends_s: float
    current: int
    current_ends_s: float

    @property
    def used(self) -> float:
        return self.previous * self.previous_ends_s / MINUTE_S + self.current

    @property
    def remaining(self) -> int:
        return max(0, self.limit - math.floor(self.used))

    @property
    def wait_s(self) -> float:
        """Until one more may be taken; 0: now."""
        if self.used < self.limit:
            return 0.0
        if self.current < self.limit:  # so it is what came before that has to be past
            return (
                self.previous_ends_s - (self.limit - self.current) * MINUTE_S / self.previous + _JUST_AFTER_S
            )
        turns_s = max(0.0, self.current_ends_s - MINUTE_S)
        return turns_s + MINUTE_S - self.limit * MINUTE_S / self.current + _JUST_AFTER_S

    @property
    def reset_s(self) -> float:
        """Until nothing counts any more."""
        return self.current_ends_s if self.current else self.previous_ends_s if self.previous else 0.0


def duration(seconds: float) -> str:
    """As OpenAI writes it: `6m0s`, `1s`, `120ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
