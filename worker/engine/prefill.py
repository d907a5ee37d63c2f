"""Who is prefilled next, and in pieces of what size. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

AGEING_TOKENS_PER_S = 200.0
"""A waiting prompt counts as shorter by so much with each second, so a long one is not starved."""

_BUSY_S, _BUSY_MIN, _BUSY_MAX = 0.25, 32, 512
_IDLE_S, _IDLE_MIN, _IDLE_MAX = 2.0, 128, 2048


@dataclass
class PrefillQueue(Generic[T]):
    """Prompts that wait for their turn: the shortest first, with ageing."""

    _waiting: list[tuple[T, int, float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: T, tokens: int, now: float) -> None:
        self._waiting.append((item, tokens, now))

    def remove(self, item: T) -> bool:
        """False when it does not wait here."""
        kept = [entry for entry in self._waiting if entry[0] is not item]
        found = len(kept) < len(self._waiting)
        self._waiting = kept
        return found

    def pop(self, now: float) -> T | None:
        """The next to be prefilled, or None. Of equals, the one that came first."""
        if not self._waiting:
            return None
        best = min(self._waiting, key=lambda entry: entry[1] - AGEING_TOKENS_PER_S * (now - entry[2]))
        self._waiting.remove(best)
        return best[0]


def chunk_tokens(rate: float, *, decoding: bool) -> int:
    """How many prompt tokens to read in one step, at `rate` tokens per second (0: not measured yet).

    While streams run, they must not stand still for long; otherwise only a cancellation waits.
    """
    seconds, least, most = (_BUSY_S, _BUSY_MIN, _BUSY_MAX) if decoding else (_IDLE_S, _IDLE_MIN, _IDLE_MAX)
    return min(most, max(least, int(rate * seconds)))


@dataclass
class Rate:
    """Tokens per second, smoothed over the last few seconds of work. 0 until measured."""

    value: float = 0.0
    _memory_s: float = 2.0

    def measure(self, tokens: int, seconds: float) -> None:
        if tokens <= 0 or seconds <= 0:
            return
        weight = min(1.0, seconds / self._memory_s) if self.value else 1.0
        self.value += weight * (tokens / seconds - self.value)
