"""How a token is drawn: a function of log-probabilities, settings, seed and position, and nothing else.

So the token at a position is the same alone or in a batch, and after a request was moved. The draw
is Gumbel-max with noise keyed by seed and position; `mx.random.categorical` draws differently for
one row than for several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from worker.engine.settings import SamplingSettings, noise_key

Sampler = Callable[[mx.array], mx.array]

_LEAST_TOP_P = 1e-6
"""Leaves the likeliest token, as 0 is meant to; at 0 itself the function would find no threshold."""


def greedy(logprobs: mx.array) -> mx.array:
    """The likeliest token of each row. One object for all greedy rows lets the batch share a call."""
    return mx.argmax(logprobs, axis=-1)


@dataclass
class SeededSampler:
    """Draws the tokens of one request in turn. It never raises, since that would harm the whole batch.

    `failure` is the exception after which it went on greedily; the owner ends the request for it.
    """

    settings: SamplingSettings
    position: int
    """The absolute number, in the answer, of the token that is drawn next."""
    failure: Exception | None = None

    def __call__(self, logprobs: mx.array) -> mx.array:
        position, self.position = self.position, self.position + 1
        try:
            return draw(logprobs, self.settings, position)
        except Exception as error:  # noqa: BLE001 (the other rows of the batch go on)
            self.failure = error
            return greedy(logprobs)


def draw(logprobs: mx.array, settings: SamplingSettings, position: int) -> mx.array:
    """The token of that position for one row of log-probabilities."""
    if settings.top_p < 1:
        logprobs = apply_top_p(logprobs, max(settings.top_p, _LEAST_TOP_P))
    if settings.min_p > 0:
        logprobs = apply_min_p(logprobs, settings.min_p)
    if 0 < settings.top_k < logprobs.shape[-1]:
        logprobs = apply_top_k(logprobs, settings.top_k)
    noise = mx.random.gumbel(logprobs.shape, key=mx.random.key(noise_key(settings.seed, position)))
    return mx.argmax(logprobs / settings.temperature + noise, axis=-1)


def make_sampler(settings: SamplingSettings, position: int) -> Sampler:
    """The sampler of a request whose next token has that position in the answer."""
    return greedy if settings.temperature == 0 else SeededSampler(settings, position)
