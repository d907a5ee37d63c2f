"""Rows of mlx-lm's BatchGenerator: the one place that knows it. Lives on the engine thread.

A row is read from its prompt's cached beginning to the last token but one, then moves to the running
rows, and from then on each step gives it a token. Stop strings, text and clients are other places'
matters; here are only token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engine.prefill import Rate
from worker.engine.sampling import Sampler, make_sampler
from worker.engine.sequence import Sequence

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
    sampler: Sampler
    unread: int
    """Tokens of the prompt; at 1 it is ready to run, at 0 it runs."""


@dataclass(frozen=True)
class Token:
    """What a step gave to a row. With the last one, `finish`, and the cache of all `ids` before it."""

    row: Row
    token: int
    finish: str | None
    cache: list[Any] | None
    ids: list[int] | None


class Rows:
    """Owns the generator and what is in it, and measures its speed."""

    def __init__(self, make_generator: Callable[[], BatchGenerator]) -> None:
        self._make_generator = make_generator
        self._generator = make_generator()
        self._rows: dict[int, Row] = {}
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
    def running(self) -> int:
        """Rows that get a token in the next step."""
        return sum(row.unread == 0 for row in self._rows.values())

    def insert(self, sequence: Sequence, since: float, beginning: Beginning) -> Row:
        """Raises what the generator raises; nothing is in it then."""
        ids = sequence.ids
        sampler = make_sampler(sequence.sampling, position=len(sequence.emitted))
        (uid,) = self._generator.insert(
            [ids[beginning.tokens :]],
            max_tokens=[sequence.max_tokens - len(sequence.emitted)],
            caches=[beginning.cache],
            all_tokens=[ids[: beginning.tokens]],
            samplers=[sampler],
            stop_sequences=[StopSequences([(token_id,) for token_id in sorted(sequence.stop_ids)])],
        )
        row = self._rows[uid] = Row(sequence, since, sampler, unread=len(ids) - beginning.tokens)
        return row

    def remove(self, row: Row) -> None:
        uid = self._uid(row)
        self._generator.remove([uid])
        del self._rows[uid]

    def take_out(self, row: Row) -> Beginning:
        """Remove a row whose prompt is being read, with what was read of it."""
        uid = self._uid(row)
        ((cache, tokens),) = self._generator.remove([uid], return_prompt_caches=True).values()
        del self._rows[uid]
        mx.eval([layer.state for layer in cache])  # otherwise it would keep the whole batch alive
        return Beginning(cache, len(tokens))

    def step(self, piece: int) -> list[Token]:
        """A token for each running row, and up to `piece` tokens of each prompt.

        Raises what the model raises.
        """
        # Of rows that are ready, the generator moves all, and reads the prompts of all others.
        self._generator.prefill_batch_size = max(1, sum(row.unread > 0 for row in self._rows.values()))
        self._generator.prefill_step_size = piece
        with self._generator.stats() as work:
            prompts, tokens = self._generator.next()
        self.prefill_rate.measure(work.prompt_tokens, work.prompt_time)
        self.decode_rate.measure(work.generation_tokens, work.decode_time)
        for prompt in prompts:
            done, total = prompt.progress
            self._rows[prompt.uid].unread = 0 if prompt.end_of_prompt else total - done
        return [self._token(response) for response in tokens]

    def reset(self) -> list[Row]:
        """After a step that raised, nothing is known of the generator: a new one. Those that were in it."""
        rows, self._rows = self.all(), {}
        self._generator.close()
        self._generator = self._make_generator()
        return rows

    def close(self) -> None:
        self._generator.close()
        self._rows.clear()

    def _token(self, response: Any) -> Token:
        row = self._rows[response.uid]
        if response.finish_reason is not None:
            del self._rows[response.uid]
        return Token(
            row, int(response.token), response.finish_reason, response.prompt_cache, response.all_tokens
        )

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


def generator_maker(model: Any, max_num_seqs: int) -> Callable[[], BatchGenerator]:
    """Makes generators for a loaded model."""
    return lambda: BatchGenerator(model, **generator_options(max_num_seqs))
