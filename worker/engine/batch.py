"""Many sequences through one model: who joins, who waits, what a failed step means.

Lives on the engine thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from worker.engine.batch_sampler import BatchSampler
from worker.engine.output import EngineFailed
from worker.engine.preemption import Preemption
from worker.engine.prefill import Pieces, PrefillQueue, Prompt, Rate, pieces
from worker.engine.prefix_cache import BLOCK, PrefixCache
from worker.engine.recovery import Recovery
from worker.engine.rows import Beginning, MakeGenerator, Row, Rows, generator_maker, padded
from worker.engine.scoring import PromptScoring
from worker.engine.sequence import Event, Events, Sequence
from worker.engine.turns import Turns

logger = logging.getLogger(__name__)

_LONG = 512
"""Tokens. The generator copies the caches of prompts that it is about to run, padded to the longest of those
that it reads at the same time: a long prompt goes alone there."""


class Batch:
    """Owns the rows, the prompts that wait to be among them, and the prefix cache."""

    def __init__(
        self,
        sampler: BatchSampler,
        max_num_seqs: int,
        prefixes: PrefixCache,
        now: Callable[[], float] = time.monotonic,
        make_generator: MakeGenerator | None = None,
        kv_tokens: int | None = None,
    ) -> None:
        """`kv_tokens`: how many tokens of prompts and answers the rows may hold together."""
        self._network = sampler.network
        self._rows = Rows(sampler, make_generator or generator_maker(max_num_seqs))
        self._max_num_seqs = max_num_seqs
        self._prefixes = prefixes
        self._now = now
        self._waiting: PrefillQueue[Sequence] = PrefillQueue()
        self._aside: dict[Sequence, Beginning] = {}
        """What was read of prompts that wait because a shorter one went before them."""
        self._scoring: PromptScoring | None = None
        self._recovery: Recovery[Sequence] = Recovery()
        self._preemption: Preemption[Sequence] = Preemption(kv_tokens)
        self._turns = Turns(self._recovery, self._preemption, prefixes)

    @property
    def prefill_rate(self) -> Rate:
        return self._rows.prefill_rate

    @property
    def decode_rate(self) -> Rate:
        return self._rows.decode_rate

    @property
    def has_work(self) -> bool:
        return bool(len(self._rows) or len(self._waiting) or self._scoring or self._prefixes.unsettled)

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def prefill_tokens(self) -> int:
        """Tokens still to be read of the prompts that are being read; those that wait are not begun."""
        scoring = 0 if self._scoring is None else self._scoring.tokens_left
        return scoring + sum(row.unread for row in self._rows.all())

    @property
    def preemptions(self) -> int:
        return self._preemption.count

    def add(self, sequence: Sequence) -> None:
        self._wait(sequence, self._now())

    def remove(self, sequence: Sequence) -> None:
        """End it, waiting or running; one that is not here has ended already."""
        self._forget(sequence)
        if self._waiting.remove(sequence):
            return
        if self._scoring is not None and self._scoring.sequence is sequence:
            self._scoring = None
        for row in self._rows.all():
            if row.sequence is sequence:
                self._keep(row)
                self._rows.remove(row)

    def make_room(self) -> Sequence | None:
        """Memory runs out: the newest row gives up its cache and waits. One that is alone is returned."""
        rows = self._rows.all()
        if self._aside:
            self._aside.clear()
        elif len(rows) > 1 or (rows and self._scoring):
            self._preempt()
        elif rows:
            return rows[0].sequence
        elif self._scoring:
            return self._scoring.sequence
        return None

    def step(self) -> Events:
        """One token for each running row, and one piece of a prompt. What came of it, by sequence."""
        self._prefixes.settle()
        while len(self._rows) > 1 and self._preemption.too_much(self._rows.tokens + self._rows.running):
            self._preempt()
        events = self._admit() if self._scoring is None else self._score(self._scoring)
        if not len(self._rows):
            return events
        reading = self._rows.reading
        try:
            tokens = self._rows.step(self._piece())
        except Exception as error:  # noqa: BLE001 (whatever the model raises)
            return events + self._recover(error)
        for row in reading:
            if row.at_stop and row.read >= BLOCK:
                self._keep(row)
        for token in tokens:
            sequence = token.row.sequence
            if not math.isfinite(token.likelihood.logprob):
                self._drop(token.row)
                failure = RuntimeError("the model gave no number for the probability of a token (NaN)")
                logger.error("request %s: %s", sequence.request_id, failure)
                events.append((sequence, Event(error=failure)))
                continue
            sequence.emitted.append(token.token)
            self._recovery.progressed(sequence)
            if token.cache is not None and token.ids is not None:
                self._prefixes.store_later(token.ids, token.cache)
            event = Event(token=token.token, finish=token.finish, likelihood=token.likelihood)
            events.append((sequence, event))
        return events + self._end_failed_rows()

    @property
    def prefix_stats(self) -> dict[str, int]:
        return self._prefixes.stats()

    def clear_prefixes(self) -> None:
        self._prefixes.clear()

    def close(self) -> None:
        self._rows.close()
        self._prefixes.close()
        self._aside.clear()

    def _piece(self) -> int:
        """How far the prompts are read in the next step: to their ends, where that is short."""
        reading, budget = self._rows.reading, self._budget()
        longest = padded(reading)
        return longest if 0 < longest * len(reading) <= budget.of_whole else budget.of_one

    def _budget(self) -> Pieces:
        return pieces(self.prefill_rate.value, decoding=self._rows.running > 0)

    def _admit(self) -> Events:
        """Prompts join as soon as those before them are read, or a shorter one takes their place."""
        now, rate = self._now(), self.prefill_rate.value
        match self._rows.reading:
            case [] if not any(row.unread and len(row.sequence.ids) > _LONG for row in self._rows.all()):
                pass
            case [row] if not self._preemption.anyone and self._waiting.overtakes(
                row.unread, row.since, now, rate
            ):
                self._put_aside(row)
            case _:
                return []
        places = self._max_num_seqs - len(self._rows)
        if not places:
            return []
        admits = self._turns.admits([row.sequence for row in self._rows.all()])
        group = self._waiting.take(now, rate, self._budget().of_whole, places, admits)
        return [event for prompt in group for event in self._insert(prompt)]

    def _keep(self, row: Row) -> None:
        """Store what was read and written of it."""
        state = self._rows.state(row)
        if state.cache is not None:
            self._prefixes.store(row.sequence.ids[: state.tokens], state.cache)

    def _put_aside(self, row: Row) -> None:
        self._keep(row)
        beginning = self._rows.take_out(row)
        self._aside[row.sequence] = beginning
        self._waiting.add(row.sequence, len(row.sequence.ids) - beginning.tokens, row.since)

    def _insert(self, prompt: Prompt[Sequence]) -> Events:
        sequence = prompt.item
        if sequence.score_prompt:
            if self._scoring is None:
                self._scoring = PromptScoring(self._network, sequence, prompt.since)
            else:
                self._waiting.add(sequence, len(sequence.ids), prompt.since)
            return []
        begun = self._aside.pop(sequence, None)
        try:
            ids = sequence.ids
            if begun is None or self._prefixes.known(ids) > begun.tokens:
                beginning = Beginning(*self._prefixes.fetch(ids))
            else:
                beginning = begun
            self._show(sequence, beginning.tokens)
            stops = self._prefixes.stops(ids, [other.ids for other in self._waiting.items()])
            self._rows.insert(sequence, prompt.since, beginning, stops)
        except Exception as error:
            logger.exception("request %s: its prompt could not be inserted", sequence.request_id)
            self._forget(sequence)
            return [(sequence, Event(error=error))]
        self._preemption.left(sequence)
        if sequence.taken:
            return []
        sequence.taken = True
        return [(sequence, Event(cached_tokens=beginning.tokens))]

    def _show(self, sequence: Sequence, known: int) -> None:
        """Make ready what is not of its ids alone, for what comes after its first `known` tokens."""

    def _score(self, scoring: PromptScoring) -> Events:
        """One piece of the prompt whose log-probabilities are asked for; after the last, it goes on."""
        sequence = scoring.sequence
        try:
            scoring.step()
            if scoring.tokens_left:
                return []
            self._scoring = None
            sequence.score_prompt, sequence.taken = False, True
            if sequence.max_tokens:
                self._rows.insert(sequence, scoring.since, Beginning(scoring.cache, len(sequence.prompt) - 1))
        except Exception as error:
            logger.exception("request %s: its prompt could not be read", sequence.request_id)
            self._scoring = None
            return [(sequence, Event(error=error))]
        taken = (sequence, Event(cached_tokens=0, prompt=tuple(scoring.likelihoods)))
        return [taken] if sequence.max_tokens else [taken, (sequence, Event(finish="length"))]

    def _end_failed_rows(self) -> Events:
        events: Events = []
        for row in self._rows.all():
            failure = row.drawing.failure
            if failure is not None:
                logger.error("request %s: sampling failed: %s", row.sequence.request_id, failure)
                self._drop(row)
                events.append((row.sequence, Event(error=failure)))
        return events

    def _drop(self, row: Row) -> None:
        """End a row that went wrong. What was computed for it is not trusted."""
        self._forget(row.sequence)
        self._prefixes.discard(row.sequence.ids)
        if row in self._rows.all():
            self._rows.remove(row)

    def _wait(self, sequence: Sequence, since: float) -> None:
        ids = sequence.ids
        self._waiting.add(sequence, len(ids) - self._prefixes.known(ids), since)

    def _forget(self, sequence: Sequence) -> None:
        self._turns.left(sequence)
        self._aside.pop(sequence, None)

    def _preempt(self) -> None:
        """The newest row, of those that came at once the last one, waits without what was computed for it."""
        row = max(reversed(self._rows.all()), key=lambda row: row.since)
        sequence = row.sequence
        logger.warning("request %s: memory is short, so it gives up its cache and waits", sequence.request_id)
        self._preemption.went(sequence, self._rows.tokens)
        self._rows.remove(row)
        self._waiting.add(sequence, sequence.length, row.since)

    def _recover(self, error: Exception) -> Events:
        """Begin anew, without the one that is to blame."""
        rows = self._rows.reset()
        self._prefixes.forget()
        self._preemption.clear()
        culprit = self._recovery.failed([row.sequence for row in rows])
        names = ", ".join(row.sequence.request_id for row in rows)
        logger.error("a step failed, with the requests %s: %s", names, error, exc_info=error)
        for row in rows:
            if row.sequence is not culprit:
                self._wait(row.sequence, row.since)
        if self._recovery.given_up:
            return self._give_up(error, culprit)
        if culprit is None:
            return []
        return [(culprit, Event(error=RuntimeError(f"the model fails at this request: {error}")))]

    def _give_up(self, error: Exception, last: Sequence | None) -> Events:
        failed = EngineFailed(f"one request after another made the steps fail, the last with: {error}")
        lost = [] if last is None else [last]
        if self._scoring is not None:
            lost.append(self._scoring.sequence)
            self._scoring = None
        while group := self._waiting.take(self._now(), 0.0, 0, 1):
            lost += [prompt.item for prompt in group]
        self._aside.clear()
        return [(sequence, Event(error=failed)) for sequence in lost]
