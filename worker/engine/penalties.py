"""Logits as a request wants them changed: bias, stop tokens that are too early, penalties, a grammar.

The order is vLLM's, and all functions of prompt and answer, so that an answer can go on elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from worker.engine.masks import masked
from worker.engine.sequence import Guide
from worker.engine.settings import SamplingSettings


@dataclass
class History:
    """What of a request's past changes its logits. Ids on the device: the last may not be computed yet."""

    settings: SamplingSettings
    stop_ids: Sequence[int]
    prompt_tokens: int
    ids: mx.array
    """Prompt and answer, int32."""
    length: int
    guide: Guide | None = None
    answer_ids: list[int] = field(default_factory=list)
    """With a guide: the answer so far, but for the tokens that were drawn last."""
    _drawn: list[mx.array] = field(default_factory=list)
    _bias: dict[bool, tuple[mx.array, mx.array]] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """The number, in the answer, of the token that is drawn next."""
        return self.length - self.prompt_tokens

    @property
    def adjusts(self) -> bool:
        """Whether the logits are changed before the next draw."""
        return self.guide is not None or self.settings.adjusts(self.position)

    @property
    def ever_adjusts(self) -> bool:
        """Whether they are before some draw."""
        return self.guide is not None or self.settings.ever_adjusts

    def append(self, token: mx.array) -> None:
        """Take in the drawn token, of the shape (1,)."""
        self.length += 1
        if self.guide is not None:
            self._drawn.append(token)
        if self.settings.penalizes:
            self.ids = mx.concatenate([self.ids, token.astype(mx.int32)])

    @property
    def repeated(self) -> mx.array:
        return self.ids[-self.settings.repetition_context_size or None :]

    @property
    def answer(self) -> mx.array:
        return self.ids[self.prompt_tokens :]

    def follow(self) -> None:
        """Take the guide, if there is one, to where the next token comes. Waits until the last is computed.

        Raises `PromptError`.
        """
        if self.guide is not None:
            self.answer_ids += [int(token.item()) for token in self._drawn]  # type: ignore[arg-type]
            self._drawn.clear()
            self.guide.advance(self.answer_ids)

    def bias(self) -> tuple[mx.array, mx.array]:
        """Ids and what is added to their logits."""
        over = self.guide is not None and self.guide.over
        early = self.position < self.settings.min_tokens and not over
        if early not in self._bias:
            added = dict(self.settings.logit_bias)
            if early:
                added |= dict.fromkeys(self.stop_ids, float("-inf"))
            self._bias[early] = mx.array(list(added), mx.int32), mx.array(list(added.values()), mx.float32)
        return self._bias[early]


def history_of(
    settings: SamplingSettings,
    stop_ids: Sequence[int],
    prompt: Sequence[int],
    emitted: Sequence[int],
    guide: Guide | None = None,
) -> History:
    """The history of a request that has emitted so much."""
    ids = mx.array([*prompt, *emitted] if settings.penalizes else [], mx.int32)
    length = len(prompt) + len(emitted)
    return History(settings, stop_ids, len(prompt), ids, length, guide, list(emitted) if guide else [])


def adjusted(logits: mx.array, rows: Sequence[History]) -> mx.array:
    """The logits (n, vocabulary) of these rows, in float32, as their next tokens are drawn from."""
    logits = logits.astype(mx.float32)
    if any(history.guide is not None for history in rows):
        mx.async_eval(logits)  # type: ignore[no-untyped-call]  # the model works while the guides do
        for history in rows:
            history.follow()
    place, ids, added = _flat([history.bias() for history in rows])
    if added is not None:
        logits = logits.at[place, ids].add(added)
    place, ids, penalty = _flat_setting(rows, "repetition_penalty", 1.0, lambda history: history.repeated)
    if penalty is not None:
        found = logits[place, ids]
        # Set rather than scaled: a token that stands there twice is penalized once.
        logits[place, ids] = mx.where(found > 0, found / penalty, found * penalty)
    place, ids, penalty = _flat_setting(rows, "frequency_penalty", 0.0, lambda history: history.answer)
    if penalty is not None:
        logits = logits.at[place, ids].add(-penalty)
    place, ids, penalty = _flat_setting(rows, "presence_penalty", 0.0, lambda history: history.answer)
    if penalty is not None:
        logits[place, ids] = logits[place, ids] - penalty
    return masked(logits, [history.guide for history in rows])


_Flat = tuple[mx.array | None, mx.array | None, mx.array | None]


def _flat_setting(
    rows: Sequence[History], name: str, neutral: float, ids_of: Callable[[History], mx.array]
) -> _Flat:
    """That setting for every token that it concerns, in the rows where it is not neutral."""
    entries = []
    for history in rows:
        value = getattr(history.settings, name)
        ids = ids_of(history) if value != neutral else mx.array([], mx.int32)
        entries.append((ids, mx.full(ids.shape, value, mx.float32)))
    return _flat(entries)


def _flat(entries: Sequence[tuple[mx.array, mx.array]]) -> _Flat:
    """Ids and values of all rows, one after the other, with their rows' numbers; None where none are."""
    full = [(row, ids, values) for row, (ids, values) in enumerate(entries) if ids.size]
    if not full:
        return None, None, None
    places = [mx.full(ids.shape, row, mx.int32) for row, ids, _ in full]
    return (
        mx.concatenate(places),
        mx.concatenate([ids for _, ids, _ in full]),
        mx.concatenate([values for *_, values in full]),
    )
