"""The sampler that all rows of a batch share, and that knows whose rows it is given.

A generator calls a shared sampler once for all its rows, without saying which they are; who drives
the generator knows, and says so before each step. Drawing for all at once costs what the settings
need: nothing beside the model's own work where all rows take the likeliest token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from worker.engine.output import PromptError
from worker.engine.penalties import History, adjusted
from worker.engine.sampling import Draw, by_groups, draw, greedy
from worker.engine.sequence import Likelihood
from worker.engine.settings import SamplingSettings

logger = logging.getLogger(__name__)


class WatchedNetwork:
    """A network as a generator uses it; it keeps the logits of the last decode step until they are taken."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._logits: mx.array | None = None

    def __call__(self, tokens: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        logits: mx.array = self._network(tokens, *args, **kwargs)
        # Those of a prompt are never computed: to hold them would hold all that leads to them.
        self._logits = logits[:, -1, :] if tokens.shape[1] == 1 else None
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def take_logits(self) -> mx.array:
        logits, self._logits = self._logits, None
        if logits is None:
            raise RuntimeError("no decode step came before this draw")
        return logits


class _Drawn:
    """What one call drew. Read once the tokens are there: then it costs no waiting."""

    def __init__(self, logprobs: mx.array, tokens: mx.array, tops: Sequence[int | None]) -> None:
        self._of_tokens = mx.take_along_axis(logprobs, tokens[:, None].astype(mx.int32), axis=-1)[:, 0]
        self._places = {row: place for place, row in enumerate(row for row, top in enumerate(tops) if top)}
        self._tops = tops
        computed = [tokens, self._of_tokens]
        if self._places:
            most = min(max(top or 0 for top in tops), logprobs.shape[-1])
            self._likeliest = likeliest(logprobs[mx.array(list(self._places))], most)
            computed += self._likeliest
        mx.async_eval(computed)  # type: ignore[no-untyped-call]
        self._read: Any = None

    def of_row(self, row: int) -> Likelihood:
        if self._read is None:
            ids, values = self._likeliest if self._places else (mx.array([]), mx.array([]))
            self._read = self._of_tokens.tolist(), ids.tolist(), values.tolist()
        of_tokens, ids_read, values_read = self._read
        top = self._tops[row]
        if not top:
            return Likelihood(of_tokens[row])
        place = self._places[row]
        pairs = zip(ids_read[place][:top], values_read[place][:top], strict=True)
        return Likelihood(of_tokens[row], tuple(pairs))


def likeliest(logprobs: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and log-probabilities of the likeliest `count` tokens of each row, falling."""
    ids = mx.argpartition(-logprobs, count - 1, axis=-1)[:, :count]
    values = mx.take_along_axis(logprobs, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)


class Drawing:
    """A sequence in the batch, as far as drawing its tokens goes."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.failure: Exception | None = None
        """Why its draw failed; its token was then the likeliest, so that the others could go on."""
        self._drawn: tuple[_Drawn, int] | None = None
        self._ready: tuple[_Drawn, int] | None = None

    @property
    def settings(self) -> SamplingSettings:
        return self.history.settings

    @property
    def next_draw(self) -> Draw:
        return Draw(self.settings, self.history.position)

    def take(self, drawn: _Drawn, place: int, token: mx.array) -> None:
        """Its next token is drawn; the one before it comes out of the generator with this step."""
        self.history.append(token)
        self._ready, self._drawn = self._drawn, (drawn, place)

    def likelihood(self) -> Likelihood:
        """Of the token that came out of the generator last."""
        if self._ready is None:
            raise RuntimeError("no token of this row came out yet")
        drawn, place = self._ready
        return drawn.of_row(place)


class BatchSampler:
    """The sampler to give to a generator over `network`. Engine thread only."""

    def __init__(self, network: Any, special: Sequence[int] = ()) -> None:
        """`special` are the tokens that XTC never excludes."""
        self.network = WatchedNetwork(network)
        self._special = special
        self._expected: list[list[Drawing]] = []

    def expect(self, calls: list[list[Drawing]]) -> None:
        """The rows of the calls that the next step may make, in order. Not all need come."""
        self._expected = [rows for rows in calls if rows]

    def __call__(self, logprobs: mx.array) -> mx.array:
        rows = self._expected.pop(0) if self._expected else []
        logits = self.network.take_logits()
        if len(rows) != logprobs.shape[0]:
            raise RuntimeError(f"{logprobs.shape[0]} rows are to be drawn, {len(rows)} were expected")
        tokens = self._tokens(logits, logprobs, rows)
        drawn = _Drawn(logprobs, tokens, [row.settings.logprobs for row in rows])
        for place, row in enumerate(rows):
            row.take(drawn, place, tokens[place : place + 1])
        return tokens

    def _tokens(self, logits: mx.array, logprobs: mx.array, rows: list[Drawing]) -> mx.array:
        try:
            return self._drawn_together(logits, logprobs, rows)
        except PromptError as error:
            logger.info("of %d rows one cannot go on, each is drawn alone: %s", len(rows), error)
        except Exception:
            logger.exception("a draw for %d rows failed; each is drawn alone", len(rows))
        return mx.concatenate(
            [self._drawn_alone(logits[i : i + 1], logprobs[i : i + 1], row) for i, row in enumerate(rows)]
        )

    def _drawn_together(self, logits: mx.array, logprobs: mx.array, rows: list[Drawing]) -> mx.array:
        changed = [i for i, row in enumerate(rows) if row.history.adjusts]
        if not changed:
            return draw(logprobs, [row.next_draw for row in rows], self._special)
        others = [i for i in range(len(rows)) if i not in changed]

        def work(part: mx.array, places: list[int]) -> mx.array:
            chosen = [rows[i] for i in places]
            if places is changed:
                part = adjusted(logits[mx.array(places)], [row.history for row in chosen])
                part -= mx.logsumexp(part, axis=-1, keepdims=True)
            return draw(part, [row.next_draw for row in chosen], self._special)

        return by_groups(logprobs, [group for group in (others, changed) if group], work)

    def _drawn_alone(self, logits: mx.array, logprobs: mx.array, row: Drawing) -> mx.array:
        try:
            return self._drawn_together(logits, logprobs, [row])
        except Exception as error:  # noqa: BLE001 (the other rows of the batch go on)
            row.failure = error
            return greedy(logprobs)
