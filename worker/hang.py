"""Whether the engine still steps: judged by what its steps took before. Pure."""

from __future__ import annotations

from collections import deque

_FACTOR = 5.0
"""So many times what the slowest of its steps took is too long."""
_STEPS = 500
"""So many of the last steps count; of them the slowest hundredth does."""
_WITNESSED_S = 2.0
"""What passes between two looks counts for so much at most: a process that was stopped, or asleep, saw
nothing of it."""
_SAME_S = 0.001


class HangWatch:
    """Owns how long the engine has been at its present step, as looks at it show, and at those before."""

    def __init__(self, least_s: float, now: float) -> None:
        self._least_s = least_s
        self._took: deque[float] = deque(maxlen=_STEPS)
        self._stepped_at = now
        self._looked_at = now
        self.age_s = 0.0
        """Of the last step while something is pending; 0 while nothing is."""

    def look(self, age_s: float, now: float) -> None:
        """The engine says that its last step was so long ago; 0 when it has nothing to do."""
        passed_s = min(now - self._looked_at, _WITNESSED_S)
        stepped_at = now - age_s
        if stepped_at <= self._stepped_at + _SAME_S:
            self.age_s += passed_s
        else:
            if self.age_s:
                self._took.append(self.age_s)
            self.age_s = min(age_s, passed_s)
        self._stepped_at, self._looked_at = stepped_at, now

    @property
    def limit_s(self) -> float:
        """How long a step may take."""
        if not self._took:
            return self._least_s
        slowest = sorted(self._took)[int(0.99 * len(self._took))]
        return max(self._least_s, _FACTOR * slowest)

    @property
    def why(self) -> str:
        """What is wrong, with the cure; empty while the engine steps."""
        if self.age_s < self._least_s or self.age_s < self.limit_s:
            return ""
        return (
            f"the engine hangs: it has work and made no step for {self.age_s:.0f} s;"
            " if its steps do take so long, allow more: step_stall_s of the worker"
        )
