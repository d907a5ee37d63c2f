"""How a token is drawn: a function of log-probabilities, settings, seed and position, and nothing else.

So the token at a position is the same alone or in a batch, and after a request was moved. The draw
is Gumbel-max with noise keyed by seed, position and token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from worker.engine.noise import gumbel
from worker.engine.settings import SamplingSettings, noise_key

SHORT_LIST = 512
"""Filters look at the likeliest so many first: sorting the whole vocabulary takes 20 times as long."""
_LEAST_TOP_P = 1e-6
"""Leaves the likeliest token, as 0 is meant to."""


class Draw(NamedTuple):
    """One token to be drawn: whose settings, and its number in the answer."""

    settings: SamplingSettings
    position: int

    @property
    def key(self) -> int:
        return noise_key(self.settings.seed, self.position)

    @property
    def kind(self) -> Callable[[mx.array, Sequence[Draw], Sequence[int]], mx.array]:
        """What draws tokens of this sort, for several rows at once."""
        if self.settings.greedy:
            return _likeliest
        return _filtered if self.settings.filters(self.position) else _free


def greedy(logprobs: mx.array) -> mx.array:
    """The likeliest token of each row."""
    return mx.argmax(logprobs, axis=-1)


def draw(logprobs: mx.array, draws: Sequence[Draw], special: Sequence[int] = ()) -> mx.array:
    """The tokens (n,) of the rows of normalized log-probabilities (n, vocabulary).

    Rows of one kind are drawn together. XTC never excludes the tokens in `special`.
    """
    kinds: dict[Callable[..., mx.array], list[int]] = {}
    for row, each in enumerate(draws):
        kinds.setdefault(each.kind, []).append(row)
    return by_groups(
        logprobs,
        list(kinds.values()),
        lambda part, rows: draws[rows[0]].kind(part, [draws[row] for row in rows], special),
    )


def by_groups(
    values: mx.array, groups: Sequence[list[int]], work: Callable[[mx.array, list[int]], mx.array]
) -> mx.array:
    """What `work` makes of each group of rows, in the rows' own order."""
    if len(groups) == 1:
        return work(values, groups[0])
    parts = [work(values[mx.array(rows)], rows) for rows in groups]
    order = [row for rows in groups for row in rows]
    back = sorted(range(len(order)), key=order.__getitem__)
    return mx.concatenate(parts)[mx.array(back)]


def _likeliest(logprobs: mx.array, _draws: Sequence[Draw], _special: Sequence[int]) -> mx.array:
    return greedy(logprobs)


def _free(logprobs: mx.array, draws: Sequence[Draw], _special: Sequence[int]) -> mx.array:
    """Among all tokens."""
    noise = gumbel([each.key for each in draws], mx.arange(logprobs.shape[-1])[None])
    return mx.argmax(logprobs / _column(each.settings.temperature for each in draws) + noise, axis=-1)


def _filtered(
    logprobs: mx.array, draws: Sequence[Draw], special: Sequence[int], size: int = SHORT_LIST
) -> mx.array:
    """Among those that the filters leave: from the likeliest `size` where these are all of them.

    Whether they are is known beforehand, or has to be computed at once; a GPU, which would stand
    still for that, sorts quickly.
    """
    if logprobs.shape[-1] <= size:
        return _among(*_sorted(logprobs), draws, special)[0]
    wide = [row for row, each in enumerate(draws) if not _is_narrow(each, size)]
    if len(wide) == len(draws) and not _on_cpu():
        return _among(*_sorted(logprobs), draws, special)[0]
    ids = mx.argpartition(-logprobs, size - 1, axis=-1)[:, :size]
    values, order = _sorted(mx.take_along_axis(logprobs, ids, axis=-1))
    tokens, last_is_left = _among(values, mx.take_along_axis(ids, order, axis=-1), draws, special)
    if wide and _on_cpu():
        left: Any = last_is_left.tolist()
        wide = [row for row in wide if left[row] or _reaches_far(draws[row], size)]
    if wide:
        rows = mx.array(wide)
        tokens[rows] = _filtered(logprobs[rows], [draws[row] for row in wide], special, size * 16)
    return tokens


def _on_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def _is_narrow(each: Draw, size: int) -> bool:
    """Whether a list of that size is sure to hold all that its filters leave."""
    return 0 < each.settings.top_k < size and not each.settings.excludes_top(each.position)


def _reaches_far(each: Draw, size: int) -> bool:
    """Whether XTC may exclude tokens beyond a list of that size."""
    return each.settings.excludes_top(each.position) and each.settings.xtc_threshold * size < 1


def _sorted(logprobs: mx.array) -> tuple[mx.array, mx.array]:
    """Falling, with the places where they stood."""
    order = mx.argsort(-logprobs, axis=-1)
    return mx.take_along_axis(logprobs, order, axis=-1), order


def _among(
    values: mx.array, ids: mx.array, draws: Sequence[Draw], special: Sequence[int]
) -> tuple[mx.array, mx.array]:
    """The token drawn of each row of candidates, falling, and whether the filters leave the last of them."""
    left = _left(values, ids, draws, special)
    scores = values / _column(each.settings.temperature for each in draws) + gumbel(
        [each.key for each in draws], ids
    )
    best = mx.argmax(mx.where(left, scores, -mx.inf), axis=-1, keepdims=True)
    return mx.take_along_axis(ids, best, axis=-1)[:, 0], left[:, -1]


def _left(values: mx.array, ids: mx.array, draws: Sequence[Draw], special: Sequence[int]) -> mx.array:
    """Which candidates the filters leave: top-p, then min-p, then XTC, then top-k (mlx-lm's order)."""
    settings = [each.settings for each in draws]
    mass = mx.exp(values.astype(mx.float32))
    above = mx.cumsum(mass, axis=-1, inclusive=False)
    left = above < _column(max(each.top_p, _LEAST_TOP_P) if each.top_p < 1 else mx.inf for each in settings)
    left &= mass >= mass[:, :1] * _column(each.min_p for each in settings)
    if any(each.settings.excludes_top(each.position) for each in draws):
        left &= ~_top_choices(mass, ids, left, draws, special)
    if any(each.top_k for each in settings):
        most = [each.top_k or values.shape[-1] for each in settings]
        left &= mx.cumsum(left.astype(mx.int32), axis=-1) <= mx.array(most)[:, None]
    return left


def _top_choices(
    mass: mx.array, ids: mx.array, left: mx.array, draws: Sequence[Draw], special: Sequence[int]
) -> mx.array:
    """What XTC excludes: all that are likelier than the threshold, but for the least likely of them."""
    limits, all_left = [], []
    for each in draws:
        limits.append(each.settings.xtc_threshold if each.settings.excludes_top(each.position) else mx.inf)
        all_left.append(each.settings.top_p >= 1 and each.settings.min_p == 0)
    total = mx.where(mx.array(all_left), 1.0, (mass * left).sum(axis=-1))[:, None]
    over = left & (mass > total * _column(limits))
    choices = mx.arange(mass.shape[-1])[None] < over.sum(axis=-1, keepdims=True) - 1
    for token in special:
        choices &= ids != token
    return choices


def _column(values: object) -> mx.array:
    return mx.array(list(values), mx.float32)[:, None]  # type: ignore[call-overload]
