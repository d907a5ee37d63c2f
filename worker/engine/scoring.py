"""The log-probabilities of a prompt's own tokens, which a batch generator does not give.

The prompt is read apart, a piece in each step; what was computed serves the answer too.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.batch_sampler import likeliest
from worker.engine.sequence import Likelihood, Sequence

_CHUNK = 64
"""Tokens: the logits of so many positions are held at once."""


class PromptScoring:
    """Reads one prompt, up to its last token. Engine thread only."""

    def __init__(self, network: Any, sequence: Sequence, since: float) -> None:
        """`since`: when the sequence came."""
        self._network = network
        self.sequence = sequence
        self.since = since
        self.cache: list[Any] = make_prompt_cache(network)
        self.likelihoods: list[Likelihood] = []
        """Of the prompt's tokens from the second on, as far as it is read."""
        self._read = 0

    @property
    def tokens_left(self) -> int:
        return len(self.sequence.ids) - 1 - self._read

    def step(self) -> None:
        """Read the next piece."""
        ids = self.sequence.ids[self._read : self._read + min(_CHUNK, self.tokens_left) + 1]
        if len(ids) < 2:
            return
        logits = self._network(mx.array([ids[:-1]]), cache=self.cache)[0]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        of_tokens: Any = mx.take_along_axis(logprobs, mx.array(ids[1:])[:, None], axis=-1)[:, 0].tolist()
        tops: list[tuple[tuple[int, float], ...]] = [()] * len(of_tokens)
        if count := min(self.sequence.sampling.logprobs or 0, logprobs.shape[-1]):
            found: Any = [each.tolist() for each in likeliest(logprobs, count)]
            tops = [tuple(zip(*pair, strict=True)) for pair in zip(*found, strict=True)]
        mx.eval([layer.state for layer in self.cache])
        self._read += len(ids) - 1
        self.likelihoods += [Likelihood(*each) for each in zip(of_tokens, tops, strict=True)]
