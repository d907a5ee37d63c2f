"""Rows of mlx-lm's BatchGenerator: the one place that knows it. Lives on the engine thread.

A row is read from its prompt's cached beginning to the last token but one, then moves to the running
rows, and from then on each step gives it a token. Stop strings, text and clients are other places'
matters; here are only token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engine.batch_sampler import BatchSampler, Drawing
from worker.engine.penalties import history_of
from worker.engine.prefill import Rate
from worker.engine.sequence import Likelihood, Sequence

MakeGenerator = Callable[[BatchSampler], BatchGenerator]

LARGEST_PIECE = 2048


@dataclass(frozen=True)
class Beginning:
    """A part of a prompt that is computed already: its cache, one entry a layer, and its tokens."""

    cache: list[Any] | None = None
    tokens: int = 0


@dataclass(eq=False)
class Row:
    """A sequence that is in the generator."""

    sequence: Sequence
    since: float
    """When the sequence came."""
    drawing: Drawing
    unread: int
    """Tokens of the prompt; at 1 it is ready to run, at 0 it runs."""
    stops: frozenset[int] = frozenset()
    """Where, by `unread`, its reading stops for its state to be kept."""
    read: int = 0
    """Tokens of the prompt that were read since it came into the generator."""

    @property
    def at_stop(self) -> bool:
        return self.unread == 1 or self.unread in self.stops


@dataclass(frozen=True)
class Token:
    """What a step gave to a row. With the last one, `finish`, and the cache of all `ids` before it."""

    row: Row
    token: int
    likelihood: Likelihood
    finish: str | None
    cache: list[Any] | None
    ids: list[int] | None


class Rows:
    """Owns the generator and what is in it, and measures its speed."""

    def __init__(self, sampler: BatchSampler, make_generator: MakeGenerator) -> None:
        self._sampler = sampler
        self._make_generator = make_generator
        self._generator = make_generator(sampler)
        self._rows: dict[int, Row] = {}
        self._running: list[Row] = []
        """In the order in which the generator has them: that of their prompts' ends."""
        self.prefill_rate = Rate()
        self.decode_rate = Rate()

    def __len__(self) -> int:
        return len(self._rows)

    def all(self) -> list[Row]:
        """In the order of their coming into the generator."""
        return list(self._rows.values())

    @property
    def reading(self) -> list[Row]:
        """Those whose prompt the next step goes on with."""
        return [row for row in self._rows.values() if row.unread > 1]

    @property
    def tokens(self) -> int:
        """Of prompts and answers so far."""
        return sum(row.sequence.length for row in self._rows.values())

    @property
    def running(self) -> int:
        """Rows that get a token in the next step."""
        return len(self._running)

    def insert(
        self, sequence: Sequence, since: float, beginning: Beginning, stops: Iterable[int] = ()
    ) -> Row:
        """A step ends at each of `stops`, in tokens of the prompt.

        Raises what the generator raises; nothing is in it then.
        """
        ids = sequence.ids
        stop_ids = sorted(sequence.stop_ids)
        cuts = [beginning.tokens, *(stop for stop in stops if stop > beginning.tokens), len(ids)]
        (uid,) = self._generator.insert_segments(
            [[ids[start:end] for start, end in pairwise(cuts)]],
            max_tokens=[sequence.max_tokens - len(sequence.emitted)],
            caches=[beginning.cache],
            all_tokens=[ids[: beginning.tokens]],
            stop_sequences=[StopSequences([(token_id,) for token_id in stop_ids])],
        )
        drawing = Drawing(
            history_of(sequence.sampling, stop_ids, sequence.words, sequence.emitted, sequence.guide)
        )
        unread = len(ids) - beginning.tokens
        row = Row(sequence, since, drawing, unread, frozenset(len(ids) - cut for cut in cuts[1:-1]))
        self._rows[uid] = row
        return row

    def remove(self, row: Row) -> None:
        uid = self._uid(row)
        self._generator.remove([uid])
        self._forget(uid)

    def state(self, row: Row) -> Beginning:
        """What was computed for a row, lazily."""
        ((cache, tokens),) = self._generator.extract_cache([self._uid(row)]).values()
        return Beginning(cache, len(tokens))

    def take_out(self, row: Row) -> Beginning:
        """Remove a row whose prompt is being read, with what was read of it."""
        uid = self._uid(row)
        ((cache, tokens),) = self._generator.remove([uid], return_prompt_caches=True).values()
        self._forget(uid)
        mx.eval([layer.state for layer in cache])  # otherwise it would keep the whole batch alive
        return Beginning(cache, len(tokens))

    def step(self, piece: int) -> list[Token]:
        """A token for each running row, and up to `piece` tokens of each prompt.

        Raises what the model raises.
        """
        # Of rows that are ready, the generator moves all, and reads the prompts of all others.
        ready = [row.drawing for row in self._rows.values() if row.unread == 1]
        self._sampler.expect([[row.drawing for row in self._running], ready])
        self._generator.prefill_batch_size = max(1, sum(row.unread > 0 for row in self._rows.values()))
        self._generator.prefill_step_size = piece
        with self._generator.stats() as work:
            prompts, tokens = self._generator.next()
        self.prefill_rate.measure(work.prompt_tokens, work.prompt_time)
        self.decode_rate.measure(work.generation_tokens, work.decode_time)
        for prompt in prompts:
            done, total = prompt.progress
            row = self._rows[prompt.uid]
            row.unread, row.read = (0 if prompt.end_of_prompt else total - done), done
            if prompt.end_of_prompt:
                self._running.append(row)
        return [self._token(response) for response in tokens]

    def reset(self) -> list[Row]:
        """After a step that raised, nothing is known of the generator: a new one. Those that were in it."""
        rows, self._rows, self._running = self.all(), {}, []
        self._generator.close()
        self._generator = self._make_generator(self._sampler)
        return rows

    def close(self) -> None:
        self._generator.close()
        self._rows.clear()
        self._running.clear()

    def _token(self, response: Any) -> Token:
        row = self._rows[response.uid]
        if response.finish_reason is not None:
            self._forget(response.uid)
        return Token(
            row,
            int(response.token),
            row.drawing.likelihood(),
            response.finish_reason,
            response.prompt_cache,
            response.all_tokens,
        )

    def _forget(self, uid: int) -> None:
        row = self._rows.pop(uid)
        if row in self._running:
            self._running.remove(row)

    def _uid(self, row: Row) -> int:
        return next(uid for uid, each in self._rows.items() if each is row)


def padded(rows: Iterable[Row]) -> int:
    """The longest of their unread prompts: rows that are read together are padded to it."""
    return max((row.unread for row in rows), default=0)


def generator_options(max_num_seqs: int) -> dict[str, int]:
    """How `Rows` needs its generators to be made."""
    return {
        "completion_batch_size": max_num_seqs,
        "prefill_batch_size": 1,
        "prefill_step_size": LARGEST_PIECE,
    }


def generator_maker(max_num_seqs: int) -> MakeGenerator:
    """Makes generators for a sampler and its network."""
    options = generator_options(max_num_seqs)
    return lambda sampler: BatchGenerator(sampler.network, sampler=sampler, **options)
