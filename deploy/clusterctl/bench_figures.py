"""What a benchmark measured, in figures. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it. Times are in seconds, on one clock."""

    began: float
    ended: float
    pieces: tuple[float, ...] = ()
    """When each piece of the answer came."""
    tokens: int = 0
    prompt_tokens: int = 0
    worker: str = ""
    error: str = ""
    """What kind of failure it was; empty for an answer that is complete."""

    @property
    def first_token_s(self) -> float | None:
        return self.pieces[0] - self.began if self.pieces else None

    @property
    def tokens_per_s(self) -> float | None:
        """From the first token to the last; None where both came at once."""
        if len(self.pieces) < 2 or self.tokens < 2 or self.pieces[-1] <= self.pieces[0]:
            return None
        return (self.tokens - 1) / (self.pieces[-1] - self.pieces[0])

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """So good were half, 95 and 99 of a hundred, or better: a time is good when short, a speed when great."""

    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of some requests. Times and speeds are of those that were answered; null where there are none."""

    requests: int
    errors: dict[str, int]
    """Failed requests, by kind."""
    tokens: int
    first_token_s: Percentiles | None
    gap_s: Percentiles | None
    """Between two pieces of an answer, as they came: a piece may hold several tokens."""
    tokens_per_s: Percentiles | None
    """Of each request, from its first token to its last."""

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What so many clients at once were served."""

    concurrency: int
    seconds: float
    tokens_per_s: float
    """Of all clients together, from the first request to the end of the last."""
    prompt_tokens: int
    """Of a prompt: half had so many or fewer."""
    total: Figures
    workers: dict[str, Figures]
    """By id; without the requests that no worker answered."""
    cut_short: bool = False
    """By its time limit or by Ctrl-C: not all requests were made."""


def level(concurrency: int, samples: Sequence[Sample], *, cut_short: bool = False) -> Level:
    """The figures of the requests of one level."""
    answered = [sample for sample in samples if not sample.error]
    seconds = max((s.ended for s in samples), default=0.0) - min((s.began for s in samples), default=0.0)
    prompts = percentiles(sample.prompt_tokens for sample in answered)
    ids = sorted({sample.worker for sample in samples if sample.worker})
    return Level(
        concurrency=concurrency,
        seconds=seconds,
        tokens_per_s=sum(sample.tokens for sample in answered) / seconds if seconds else 0.0,
        prompt_tokens=int(prompts.p50) if prompts else 0,
        total=figures(samples),
        workers={each: figures([s for s in samples if s.worker == each]) for each in ids},
        cut_short=cut_short,
    )


def figures(samples: Iterable[Sample]) -> Figures:
    """Of these requests, without regard to who answered."""
    samples = list(samples)
    answered = [sample for sample in samples if not sample.error]
    return Figures(
        requests=len(samples),
        errors=dict(sorted(Counter(sample.error for sample in samples if sample.error).items())),
        tokens=sum(sample.tokens for sample in answered),
        first_token_s=percentiles(_known(answered, lambda sample: sample.first_token_s)),
        gap_s=percentiles([gap for sample in answered for gap in sample.gaps_s]),
        tokens_per_s=percentiles(_known(answered, lambda sample: sample.tokens_per_s), great_is_good=True),
    )


def percentiles(values: Iterable[float], *, great_is_good: bool = False) -> Percentiles | None:
    """None without values. Each is one of the values: nothing is interpolated."""
    ranked = sorted(values, reverse=great_is_good)
    if not ranked:
        return None
    return Percentiles(**{f"p{p}": ranked[math.ceil(len(ranked) * p / 100) - 1] for p in (50, 95, 99)})


def _known(samples: Iterable[Sample], read: Callable[[Sample], float | None]) -> list[float]:
    return [value for sample in samples if (value := read(sample)) is not None]
