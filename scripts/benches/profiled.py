"""A batched engine that says where its time goes. Import it after OpenBLAS came, since it imports MLX."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from worker.engine.batch import Batch
from worker.engine.batch_sampler import BatchSampler, Drawing
from worker.engine.batched import BatchedEngine
from worker.engine.detokenizer import Detokenizer
from worker.engine.loading import LoadedModel
from worker.engine.prefix_cache import PrefixCache
from worker.engine.rows import generator_options
from worker.engine.sequence import Events


@dataclass
class Clock:
    """Seconds of CPU on the engine thread and the event loop, and the steps in which they went."""

    steps: int = 0
    stepping: float = 0.0
    """The batch's steps, those of the generator in them included."""
    generating: float = 0.0
    """The generator's, the choice of tokens in them included."""
    choosing: float = 0.0
    detokenizing: float = 0.0
    encoding: float = 0.0

    def since(self, earlier: Clock) -> Clock:
        return Clock(*(getattr(self, each.name) - getattr(earlier, each.name) for each in fields(self)))

    def now(self) -> Clock:
        return replace(self)


class TimedSampler(BatchSampler):
    def __init__(self, network: Any, special: Sequence[int], clock: Clock) -> None:
        super().__init__(network, special)
        self._clock = clock

    def _tokens(self, logits: mx.array, logprobs: mx.array, rows: list[Drawing]) -> mx.array:
        began = time.thread_time()
        tokens = super()._tokens(logits, logprobs, rows)
        self._clock.choosing += time.thread_time() - began
        return tokens


class TimedGenerator(BatchGenerator):  # type: ignore[misc]
    def __init__(self, sampler: BatchSampler, places: int, clock: Clock) -> None:
        super().__init__(sampler.network, sampler=sampler, **generator_options(places))
        self._clock = clock

    def next(self) -> Any:
        began = time.thread_time()
        found = super().next()
        self._clock.generating += time.thread_time() - began
        return found


class TimedBatch(Batch):
    def __init__(self, sampler: BatchSampler, places: int, clock: Clock) -> None:
        super().__init__(
            sampler, places, PrefixCache(0), make_generator=lambda each: TimedGenerator(each, places, clock)
        )
        self._clock = clock

    def step(self) -> Events:
        began = time.thread_time()
        events = super().step()
        self._clock.stepping += time.thread_time() - began
        self._clock.steps += 1
        return events


class TimedDetokenizer:
    def __init__(self, detokenizer: Detokenizer, clock: Clock) -> None:
        self._detokenizer = detokenizer
        self._clock = clock

    def feed(self, token_ids: Sequence[int]) -> str:
        began = time.thread_time()
        text = self._detokenizer.feed(token_ids)
        self._clock.detokenizing += time.thread_time() - began
        return text

    def flush(self) -> str:
        return self._detokenizer.flush()


class TimedEngine(BatchedEngine):
    """The embedded model, without a prefix cache."""

    def __init__(self, clock: Clock, **common: Any) -> None:
        super().__init__("embedded", **common)
        self._clock = clock

    def make_stepper(self, model: LoadedModel) -> Batch:
        sampler = TimedSampler(model.network, model.special, self._clock)
        return TimedBatch(sampler, self._limits.max_num_seqs, self._clock)

    def prepare_for_start(self) -> None:
        super().prepare_for_start()
        loaded = self._host.loaded
        assert loaded is not None
        make: Callable[[], Detokenizer] = loaded.model.make_detokenizer
        model = replace(loaded.model, make_detokenizer=lambda: TimedDetokenizer(make(), self._clock))
        self._host.loaded = replace(loaded, model=model)
