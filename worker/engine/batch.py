"""Sequences through mlx-lm's BatchGenerator: the one place that knows it. Lives on the engine thread.

Prompts are inserted one at a time: prompts that are read together are padded to the longest. Stop
strings, text and clients are other places' matters; here are only token ids.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx_lm.generate import BatchGenerator, StopSequences

from worker.engine.output import EngineFailed
from worker.engine.prefill import PrefillQueue, Rate, chunk_tokens
from worker.engine.prefix_cache import PrefixCache
from worker.engine.sampling import Sampler, SeededSampler, make_sampler
from worker.engine.sequence import Event, Events, Sequence

logger = logging.getLogger(__name__)

_MOST_FAILURES = 3
_LARGEST_CHUNK = 2048


@dataclass
class _Row:
    """A sequence that is in the generator."""

    sequence: Sequence
    sampler: Sampler
    prefill_left: int


class Batch:
    """Owns the generator, the rows in it, the prompts that wait for it, and the prefix cache."""

    def __init__(
        self,
        make_generator: Callable[[], BatchGenerator],
        max_num_seqs: int,
        prefixes: PrefixCache,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_generator = make_generator
        self._generator = make_generator()
        self._max_num_seqs = max_num_seqs
        self._prefixes = prefixes
        self._now = now
        self._waiting: PrefillQueue[Sequence] = PrefillQueue()
        self._rows: dict[int, _Row] = {}
        self._prefilling: int | None = None
        self._failures = 0
        self.prefill_rate = Rate()
        self.decode_rate = Rate()

    @property
    def has_work(self) -> bool:
        return bool(self._rows) or len(self._waiting) > 0

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def prefill_tokens(self) -> int:
        """Tokens still to be read of the prompt that is being read; those that wait are not begun."""
        row = None if self._prefilling is None else self._rows.get(self._prefilling)
        return row.prefill_left if row is not None else 0

    def add(self, sequence: Sequence) -> None:
        self._waiting.add(sequence, len(sequence.ids), self._now())

    def remove(self, sequence: Sequence) -> None:
        """End it, waiting or running; one that is not here has ended already."""
        if self._waiting.remove(sequence):
            return
        for uid, row in self._rows.items():
            if row.sequence is sequence:
                self._generator.remove([uid])
                self._forget(uid)
                return

    def step(self) -> Events:
        """One token for each running row, and one piece of a prompt. What came of it, by sequence."""
        events = self._insert_next()
        if not self._rows:
            return events
        decoding = len(self._rows) - (self._prefilling is not None)
        self._generator.prefill_step_size = chunk_tokens(self.prefill_rate.value, decoding=decoding > 0)
        try:
            with self._generator.stats() as work:
                prompts, tokens = self._generator.next()
        except Exception as error:  # noqa: BLE001 (whatever the model raises)
            return events + self._recover(error)
        self._failures = 0
        self.prefill_rate.measure(work.prompt_tokens, work.prompt_time)
        self.decode_rate.measure(work.generation_tokens, work.decode_time)
        for prompt in prompts:
            self._note_prompt(prompt)
        events += [self._note_token(response) for response in tokens]
        return events + self._end_failed_rows()

    @property
    def prefix_stats(self) -> dict[str, int]:
        return self._prefixes.stats()

    def clear_prefixes(self) -> None:
        self._prefixes.clear()

    def close(self) -> None:
        self._generator.close()
        self._prefixes.clear()
        self._rows.clear()

    def _insert_next(self) -> Events:
        if self._prefilling is not None or len(self._rows) >= self._max_num_seqs:
            return []
        sequence = self._waiting.pop(self._now())
        if sequence is None:
            return []
        try:
            return [(sequence, Event(cached_tokens=self._insert(sequence)))]
        except Exception as error:
            logger.exception("request %s: its prompt could not be inserted", sequence.request_id)
            return [(sequence, Event(error=error))]

    def _insert(self, sequence: Sequence) -> int:
        ids = sequence.ids
        cache, cached = self._prefixes.fetch(ids)
        sampler = make_sampler(sequence.sampling, position=len(sequence.emitted))
        (uid,) = self._generator.insert(
            [ids[cached:]],
            max_tokens=[sequence.max_tokens - len(sequence.emitted)],
            caches=[cache],
            all_tokens=[ids[:cached]],
            samplers=[sampler],
            stop_sequences=[StopSequences([(token_id,) for token_id in sorted(sequence.stop_ids)])],
        )
        self._rows[uid] = _Row(sequence, sampler, prefill_left=len(ids) - cached)
        self._prefilling = uid
        return cached

    def _note_prompt(self, prompt: Any) -> None:
        done, total = prompt.progress
        row = self._rows.get(prompt.uid)
        if row is not None:
            row.prefill_left = total - done
        if prompt.end_of_prompt and self._prefilling == prompt.uid:
            self._prefilling = None

    def _note_token(self, response: Any) -> tuple[Sequence, Event]:
        sequence = self._rows[response.uid].sequence
        token = int(response.token)
        sequence.emitted.append(token)
        if response.finish_reason is not None:
            self._forget(response.uid)
            self._prefixes.store(response.all_tokens, response.prompt_cache)
        return sequence, Event(token=token, finish=response.finish_reason)

    def _end_failed_rows(self) -> Events:
        events: Events = []
        for uid, row in list(self._rows.items()):
            if isinstance(row.sampler, SeededSampler) and row.sampler.failure is not None:
                logger.error("request %s: sampling failed: %s", row.sequence.request_id, row.sampler.failure)
                self._generator.remove([uid])
                self._forget(uid)
                events.append((row.sequence, Event(error=row.sampler.failure)))
        return events

    def _forget(self, uid: int) -> None:
        del self._rows[uid]
        if self._prefilling == uid:
            self._prefilling = None

    def _recover(self, error: Exception) -> Events:
        """The generator's state is unknown: begin anew, from prompts and answers so far."""
        self._failures += 1
        logger.error("step failed, time %d in a row: %s", self._failures, error, exc_info=error)
        rows, self._rows, self._prefilling = list(self._rows.values()), {}, None
        for row in rows:
            self.add(row.sequence)
        if self._failures >= _MOST_FAILURES:
            return self._give_up(error)
        self._prefixes.clear()
        self._generator.close()
        self._generator = self._make_generator()
        return []

    def _give_up(self, error: Exception) -> Events:
        failed = EngineFailed(f"{self._failures} steps in a row failed, the last with: {error}")
        events: Events = []
        while (sequence := self._waiting.pop(self._now())) is not None:
            events.append((sequence, Event(error=failed)))
        return events


def generator_options(max_num_seqs: int) -> dict[str, int]:
    """How a `Batch` needs its generators to be made."""
    return {
        "completion_batch_size": max_num_seqs,
        "prefill_batch_size": 1,
        "prefill_step_size": _LARGEST_CHUNK,
    }


def generator_maker(model: Any, max_num_seqs: int) -> Callable[[], BatchGenerator]:
    """Makes generators for a loaded model."""
    return lambda: BatchGenerator(model, **generator_options(max_num_seqs))
