"""How long a loaded model has been idle, and when it may make room or has to. Pure."""

from __future__ import annotations

LEAST_STAY_S = 5.0
"""A model that was loaded stays so long if nobody uses it: whoever asked for it may be on the way."""


class Tenancy:
    """The stay of a model in memory, from one load to the next. Times are of one monotonic clock."""

    def __init__(self, idle_timeout_s: float) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._used_at = 0.0
        self._used = False

    def begin(self, now: float) -> None:
        """The model is loaded."""
        self._used_at = now
        self._used = False

    def used(self, now: float) -> None:
        """A request was served, or is over."""
        self._used_at = now
        self._used = True

    def idle_s(self, in_hand: int, now: float) -> float:
        return 0.0 if in_hand else max(0.0, now - self._used_at)

    def may_end(self, now: float) -> bool:
        """Whether the model may make room: nothing is loaded for nothing."""
        return self._used or now - self._used_at >= LEAST_STAY_S

    def left_s(self, in_hand: int, now: float) -> float:
        """Until it has been idle for too long, if nothing happens before; 0: it has."""
        return max(0.0, self._idle_timeout_s - self.idle_s(in_hand, now))
