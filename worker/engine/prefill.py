"""Who is prefilled next, with whom, and in pieces of what size. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

AGEING_TOKENS_PER_S = 200.0
"""A waiting prompt counts as shorter by so much with each second (by what the model reads in a second,
if that is more), so a long one is not starved."""

OVERTAKEN_BY = 0.5
"""A prompt that is being read is put aside for one that is shorter than this share of its rest."""

FULL_ENOUGH = 0.75
"""Prompts are read together when no more than a quarter of the work is padding."""


@dataclass(frozen=True)
class Pieces:
    """How many prompt tokens one step may read, padding included."""

    of_one: int
    """Of a prompt that takes several steps."""
    of_whole: int
    """Of prompts that are read to their ends."""


def pieces(rate: float, *, decoding: bool) -> Pieces:
    """At `rate` tokens per second (0: not measured yet).

    While streams run, they stand still for a quarter of a second at most, or for a second when whole
    prompts are done with that: they then join the streams together, and each step after it gives more.
    Otherwise only a cancellation waits.
    """
    if decoding:
        return Pieces(_clamp(rate * 0.25, 32, 512), _clamp(rate, 128, 512))
    return Pieces(_clamp(rate * 2.0, 128, 2048), _clamp(rate * 2.0, 512, 2048))


def _clamp(tokens: float, least: int, most: int) -> int:
    return min(most, max(least, int(tokens)))


@dataclass(frozen=True)
class Prompt(Generic[T]):
    """A prompt that waits: what is still to be read of it, and since when it is here."""

    item: T
    tokens: int
    since: float

    def rank(self, now: float, rate: float) -> float:
        """The lowest is next."""
        return _rank(self.tokens, self.since, now, rate)


@dataclass
class PrefillQueue(Generic[T]):
    """Prompts that wait for their turn: the shortest rest first, with ageing."""

    _waiting: list[Prompt[T]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiting)

    def items(self) -> list[T]:
        return [prompt.item for prompt in self._waiting]

    def add(self, item: T, tokens: int, since: float) -> None:
        """`since` is when it came first, also where it was here before."""
        self._waiting.append(Prompt(item, tokens, since))

    def remove(self, item: T) -> bool:
        """False when it does not wait here."""
        kept = [prompt for prompt in self._waiting if prompt.item is not item]
        found = len(kept) < len(self._waiting)
        self._waiting = kept
        return found

    def take(
        self,
        now: float,
        rate: float,
        budget: int,
        places: int,
        admits: Callable[[T], bool] = lambda _item: True,
    ) -> list[Prompt[T]]:
        """Those that are read next, taken out: none, one, or several that fit into one step together.

        Prompts that are read together are padded to the longest, so only ones of similar length are.
        """
        order = [p for p in sorted(self._waiting, key=lambda p: p.rank(now, rate)) if admits(p.item)]
        group: list[Prompt[T]] = []
        for prompt in order:
            if len(group) < places and (not group or _fit_together([*group, prompt], budget)):
                group.append(prompt)
        for prompt in group:
            self._waiting.remove(prompt)
        return group

    def overtakes(self, tokens: int, since: float, now: float, rate: float) -> bool:
        """Whether one that waits should go before the rest of a prompt that is being read."""
        rank = _rank(tokens, since, now, rate)
        return any(
            waiting.tokens <= OVERTAKEN_BY * tokens and waiting.rank(now, rate) < rank
            for waiting in self._waiting
        )


def _rank(tokens: int, since: float, now: float, rate: float) -> float:
    """What is to be read, less what the waiting is worth, in tokens."""
    return tokens - max(rate, AGEING_TOKENS_PER_S) * (now - since)


def _fit_together(prompts: list[Prompt[T]], budget: int) -> bool:
    padded = len(prompts) * max(prompt.tokens for prompt in prompts)
    return padded <= budget and sum(prompt.tokens for prompt in prompts) >= FULL_ENOUGH * padded


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
