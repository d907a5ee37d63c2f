"""Sequences through mlx-lm's generators of single sequences, one after the other. On the engine thread.

With a draft model a step is a round: the draft proposes some tokens, and the model checks them all
at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step

from worker.engine.batch_sampler import likeliest
from worker.engine.caches import Caches, even_out
from worker.engine.output import EngineFailed
from worker.engine.prefill import Rate, pieces
from worker.engine.prefix_cache import PrefixCache
from worker.engine.prefix_state import Cache
from worker.engine.recovery import Recovery
from worker.engine.rounds import RoundSampler, history
from worker.engine.sequence import Event, Events, Likelihood, Sequence

logger = logging.getLogger(__name__)

Tokens = Generator[tuple[int, mx.array, bool], None, None]
"""Token, log-probabilities, and whether the draft proposed it."""


@dataclass(frozen=True)
class Networks:
    """A loaded model, and what proposes tokens to it."""

    model: Any
    draft: Any = None
    num_draft_tokens: int = 3
    vocabulary: int | None = None
    """So many token ids both know."""
    special: tuple[int, ...] = ()
    """Tokens that XTC never excludes."""

    @property
    def all(self) -> list[Any]:
        return [self.model] if self.draft is None else [self.model, self.draft]


@dataclass
class _Run:
    """The sequence that is computed."""

    sequence: Sequence
    caches: list[Cache]
    rest: list[int]
    """What is still to be read of the prompt. Its last token begins the answer."""
    sampler: RoundSampler
    tokens: Tokens | None = None


class Solo:
    """Owns the sequence in the model, those that wait for it, and the prefix cache."""

    def __init__(
        self,
        networks: Networks,
        caches: Caches,
        prefixes: PrefixCache,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._networks = networks
        self._caches = caches
        self._prefixes = prefixes
        self._now = now
        self._waiting: deque[Sequence] = deque()
        self._run: _Run | None = None
        self._recovery: Recovery[Sequence] = Recovery()
        self.prefill_rate = Rate()
        self.decode_rate = Rate()

    @property
    def has_work(self) -> bool:
        return self._run is not None or bool(self._waiting)

    @property
    def running(self) -> int:
        return int(self._run is not None)

    @property
    def prefill_tokens(self) -> int:
        run = self._run
        return 0 if run is None or run.tokens is not None else len(run.rest)

    @property
    def preemptions(self) -> int:
        return 0

    @property
    def prefix_stats(self) -> dict[str, int]:
        return self._prefixes.stats()

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._recovery.left(sequence)
        if self._run is not None and self._run.sequence is sequence:
            self._keep(self._run)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def make_room(self) -> Sequence | None:
        return None if self._run is None else self._run.sequence

    def step(self) -> Events:
        """One piece of a prompt; or one token, or those that the model took in a round of the draft."""
        events: Events = []
        if self._run is None:
            if not self._waiting or not self._prefixes.warm(self._waiting[0].ids):
                return events
            self._run = self._begin(self._waiting.popleft())
            cached = len(self._run.sequence.ids) - len(self._run.rest)
            events.append((self._run.sequence, Event(cached_tokens=cached)))
        run = self._run
        try:
            if len(run.rest) > 1:
                self._read(run)
            else:
                events += [(run.sequence, event) for event in self._decode(run)]
                self._recovery.progressed(run.sequence)
        except Exception as error:
            logger.exception("request %s: its step failed", run.sequence.request_id)
            self._end(run)
            return events + self._failed(run.sequence, error)
        return events

    def clear_prefixes(self) -> None:
        self._prefixes.clear()

    def close(self) -> None:
        self._waiting.clear()
        if self._run is not None:
            self._end(self._run)
        self._prefixes.close()

    def _begin(self, sequence: Sequence) -> _Run:
        ids = sequence.ids
        known, cached = self._prefixes.fetch(ids)
        caches = self._caches.new() if known is None else self._caches.split(known)
        sampler = RoundSampler(self._networks.vocabulary, self._networks.special, history(sequence))
        return _Run(sequence, caches, ids[cached:], sampler)

    def _read(self, run: _Run) -> None:
        began = self._now()
        count = min(len(run.rest) - 1, pieces(self.prefill_rate.value, decoding=False).of_one)
        ids = mx.array([run.rest[:count]], mx.uint32)
        with mx.stream(generation_stream):
            for network, cache in zip(self._networks.all, run.caches, strict=True):
                network(ids, cache=cache)
                self._caches.quantize(cache)
                mx.eval([layer.state for layer in cache])
        mx.clear_cache()
        del run.rest[:count]
        self.prefill_rate.measure(count, self._now() - began)

    def _decode(self, run: _Run) -> list[Event]:
        """The next token, or a round; ends the run with the last token."""
        began = self._now()
        sequence = run.sequence
        if run.tokens is None:
            run.tokens = self._tokens(run)
        room = sequence.max_tokens - len(sequence.emitted)
        drafts = min(room, self._networks.num_draft_tokens) if self._networks.draft is not None else 0
        if drafts:
            run.sampler.begin(history(sequence), drafts)
        events: list[Event] = []
        for token, logprobs, proposed in run.tokens:
            likelihood = _likelihood(token, logprobs, sequence.sampling.logprobs or 0)
            sequence.emitted.append(token)
            finish = _finish(sequence, token)
            first = not events
            events.append(
                Event(
                    token=token,
                    finish=finish,
                    likelihood=likelihood,
                    drafts=drafts if first else 0,
                    accepted=int(proposed),
                )
            )
            if finish is not None or not proposed:
                break
        self.decode_rate.measure(len(events), self._now() - began)
        if events[-1].finish is not None:
            self._keep(run)
        return events

    def _tokens(self, run: _Run) -> Tokens:
        networks, options = self._networks, self._caches.options
        how = {
            "max_tokens": run.sequence.max_tokens - len(run.sequence.emitted),
            "sampler": run.sampler,
            "logits_processors": [run.sampler.watch] if run.sampler.history.ever_adjusts else None,
            "prompt_cache": [layer for cache in run.caches for layer in cache],
            "kv_bits": options.kv_bits,
            "kv_group_size": options.kv_group_size,
            "quantized_kv_start": options.quantized_kv_start,
        }
        prompt = mx.array(run.rest, mx.uint32)
        if networks.draft is None:
            return ((*drawn, False) for drawn in generate_step(prompt, networks.model, **how))
        tokens: Tokens = speculative_generate_step(
            prompt, networks.model, networks.draft, num_draft_tokens=networks.num_draft_tokens, **how
        )
        return tokens

    def _keep(self, run: _Run) -> None:
        """End the run, and keep its cache for prompts that begin alike."""
        begun = run.tokens is not None
        self._end(run)
        if begun and self._caches.options.kv_bits is None:
            joined = [layer for cache in run.caches for layer in cache]
            ids = run.sequence.ids
            self._prefixes.store(ids if self._networks.draft is None else ids[: even_out(joined)], joined)

    def _end(self, run: _Run) -> None:
        self._run = None
        if run.tokens is not None:
            run.tokens.close()

    def _failed(self, sequence: Sequence, error: Exception) -> Events:
        """It begins anew, from prompt and answer so far, unless it is to blame."""
        if self._recovery.failed([sequence]) is None:
            self._waiting.appendleft(sequence)
            return []
        if not self._recovery.given_up:
            return [(sequence, Event(error=RuntimeError(f"the model fails at this request: {error}")))]
        failed = EngineFailed(f"one request after another made the steps fail, the last with: {error}")
        lost = [sequence, *self._waiting]
        self._waiting.clear()
        return [(each, Event(error=failed)) for each in lost]


def _likelihood(token: int, logprobs: mx.array, count: int) -> Likelihood:
    """Raises `ArithmeticError` for what is no number: then the token is none either."""
    logprob = float(logprobs[token].item())  # type: ignore[arg-type]
    if not math.isfinite(logprob):
        raise ArithmeticError("the model's output is not a number")
    if not count:
        return Likelihood(logprob)
    top: list[Any] = [each[0].tolist() for each in likeliest(logprobs[None], min(count, logprobs.shape[-1]))]
    return Likelihood(logprob, tuple(zip(*top, strict=True)))


def _finish(sequence: Sequence, token: int) -> str | None:
    if token in sequence.stop_ids:
        return "stop"
    return "length" if len(sequence.emitted) >= sequence.max_tokens else None
