"""Who gets a place in the worker: slots, waiting room, and budgets of tokens. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from protocol.values import Capacity, Load
from worker.engine.base import EngineBusy
from worker.engine.output import EngineLoad, PromptError

PREFILL_LIMIT_S = 5.0
"""So much prefill may be pending where any is."""
BYTES_PER_TOKEN = 4
"""Until a prompt is tokenized; ordinary English has about that many."""
LEAST_RETRY_S = 0.05
MOST_RETRY_S = 30.0
SERVICE_TIME_S = 1.0
"""Of a request, before any was served."""


class NoPlace(EngineBusy):
    """`EngineBusy` with an estimate of when another try may succeed."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = min(MOST_RETRY_S, max(LEAST_RETRY_S, retry_after_s))


@dataclass
class Place:
    """What one admitted request holds."""

    prompt_tokens: int
    answer_tokens: int
    since: float
    started: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


def estimated_tokens(prompt_bytes: int) -> int:
    return max(1, prompt_bytes // BYTES_PER_TOKEN)


class Admission:
    """Owns the places that were given out. Every admitted key is released once, however often asked."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._places: dict[Hashable, Place] = {}
        self._service_s = SERVICE_TIME_S

    def admit(
        self, key: Hashable, prompt_tokens: int, answer_tokens: int, engine: EngineLoad, now: float
    ) -> None:
        """Take a place, from estimates alone. Raises `NoPlace`."""
        if key in self._places:
            raise ValueError(f"{key} has a place already")
        capacity = self._capacity
        if len(self._places) >= capacity.max_num_seqs + capacity.max_waiting:
            raise NoPlace("all slots and waiting places are taken", self._next_free_s())
        if self._places:
            self._check_budget(prompt_tokens + answer_tokens, self._promised())
            self._check_prefill(prompt_tokens, engine)
        self._places[key] = Place(prompt_tokens, answer_tokens, now)

    def started(self, key: Hashable, prompt_tokens: int) -> None:
        """The prompt was taken by the engine and its length is known.

        Raises `NoPlace` when the estimate was too low for what others hold, and `PromptError` for a
        prompt that no emptiness of the worker makes fit.
        """
        place = self._places[key]
        prompt_tokens = prompt_tokens or place.prompt_tokens
        budget = self._capacity.kv_tokens
        if budget is not None and prompt_tokens >= budget:
            raise PromptError(
                f"the prompt has {prompt_tokens} tokens; this worker holds {budget} tokens in all",
                "context_length_exceeded",
            )
        if len(self._places) > 1:
            others = self._promised() - self._bounded(place.tokens)
            self._check_budget(prompt_tokens + place.answer_tokens, others)
        place.prompt_tokens = prompt_tokens
        place.started = True

    def release(self, key: Hashable, now: float) -> bool:
        """Give the place back. False when there is none under that key."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        self._service_s += 0.1 * (max(0.0, now - place.since) - self._service_s)
        return True

    def load(self, engine: EngineLoad | None) -> Load:
        """What is in hand. `engine` is what our own engines report; a foreign one reports nothing."""
        held = len(self._places)
        running = min(held, self._capacity.max_num_seqs)
        return Load(
            running=running,
            waiting=held - running,
            prefill_tokens=self._unstarted_tokens() + (0 if engine is None else engine.prefill_tokens),
            kv_tokens=self._promised() if engine is None else engine.kv_tokens,
        )

    @property
    def held(self) -> int:
        return len(self._places)

    def _check_budget(self, wanted: int, promised: int) -> None:
        budget = self._capacity.kv_tokens
        if budget is not None and promised + self._bounded(wanted) > budget:
            raise NoPlace(f"{promised} of {budget} tokens are promised", self._next_free_s())

    def _check_prefill(self, prompt_tokens: int, engine: EngineLoad) -> None:
        """Only where prefill is pending: an engine without any takes every prompt."""
        pending = self._unstarted_tokens() + engine.prefill_tokens
        rate = engine.prefill_tokens_per_s
        if pending and rate and (pending + prompt_tokens) / rate > PREFILL_LIMIT_S:
            raise NoPlace(f"{pending} prompt tokens are still to be computed", pending / rate)

    def _bounded(self, tokens: int) -> int:
        """No request holds more than everything: alone, it is cut to fit."""
        budget = self._capacity.kv_tokens
        return tokens if budget is None else min(tokens, budget)

    def _promised(self) -> int:
        return sum(self._bounded(place.tokens) for place in self._places.values())

    def _unstarted_tokens(self) -> int:
        return sum(place.prompt_tokens for place in self._places.values() if not place.started)

    def _next_free_s(self) -> float:
        return self._service_s / self._capacity.max_num_seqs
