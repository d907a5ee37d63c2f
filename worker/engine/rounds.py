"""Which token of an answer a generator of single sequences draws: the next one, or those of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx

from worker.engine.penalties import History, adjusted, history_of
from worker.engine.sampling import Draw, draw
from worker.engine.sequence import Sequence


@dataclass
class RoundSampler:
    """Draws each token with the noise of its position, whoever asks for it.

    In a round the draft draws first, `drafts` times, and then the model for the same positions and
    one more. So the draft guesses under the noise that the model draws with, and what the model says
    is what it would have said alone. Without a draft there is one endless round.
    """

    vocabulary: int | None
    """Ids from here on are not known to both models."""
    special: tuple[int, ...]
    """Tokens that XTC never excludes."""
    history: History
    drafts: int = 0
    _calls: int = 0
    _seen: tuple[mx.array, mx.array] | None = None

    def begin(self, history: History, drafts: int) -> None:
        """A round that goes on from there."""
        self.history, self.drafts, self._calls = history, drafts, 0

    def watch(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """To be the generator's logits processor where logits change with what was said: it changes none.

        The log-probabilities that the generator gives out stay the model's own.
        """
        self._seen = tokens, logits
        return logits

    def __call__(self, logprobs: mx.array) -> mx.array:
        drawn = self._calls - (self.drafts if self._calls >= self.drafts else 0)
        self._calls += 1
        settings, first = self.history.settings, self.history.position + drawn
        if self._seen is not None:
            logprobs = self._changed(logprobs, drawn)
        rows = range(first, first + len(logprobs))
        return draw(logprobs[:, : self.vocabulary], [Draw(settings, each) for each in rows], self.special)

    def _changed(self, logprobs: mx.array, drawn: int) -> mx.array:
        """As the request wants them after the tokens of the round that come before this one."""
        now = replace(self.history, length=self.history.length + drawn)
        if self._seen is None or not now.adjusts:
            return logprobs
        tokens, logits = self._seen
        round_ids = tokens[len(tokens) - drawn :].astype(mx.int32)
        now.ids = mx.concatenate([self.history.ids, round_ids])
        if now.guide is not None:
            now.answer_ids = [*now.answer_ids, *map(int, round_ids.tolist())]  # type: ignore[arg-type]
        changed = adjusted(logits, [now])
        return changed - mx.logsumexp(changed, axis=-1, keepdims=True)


def history(sequence: Sequence) -> History:
    """Of what it has so far."""
    return history_of(
        sequence.sampling, sorted(sequence.stop_ids), sequence.prompt, sequence.emitted, sequence.guide
    )
