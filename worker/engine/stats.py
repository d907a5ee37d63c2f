"""Figures about an engine, under vLLM's names where it has them; docs/architecture.md explains each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.engine.host import Loaded
from worker.engine.limits import Limits
from worker.engine.output import EngineLoad
from worker.engine.sequence import Event


@dataclass
class Totals:
    """Counted since the engine was started."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    ended_for_memory: int = 0

    def count(self, event: Event) -> None:
        self.generation_tokens += event.token is not None
        self.draft_tokens += event.drafts
        self.accepted_tokens += event.accepted


def engine_stats(
    kind: str, load: EngineLoad, totals: Totals, limits: Limits, loaded: Loaded | None
) -> dict[str, Any]:
    """The answer of `get_stats`."""
    budget = limits.kv_tokens
    bytes_of = {} if loaded is None else {name: getattr(loaded.guard.reading, name) for name in _MEMORY}
    return {
        "engine": kind,
        "num_requests_running": load.running,
        "num_requests_waiting": load.waiting,
        "max_num_seqs": limits.max_num_seqs,
        "prompt_tokens": totals.prompt_tokens,
        "generation_tokens": totals.generation_tokens,
        "prefill_tokens_pending": load.prefill_tokens,
        "kv_cache_tokens": load.kv_tokens,
        "kv_cache_usage_perc": None if budget is None else round(min(1.0, load.kv_tokens / budget), 4),
        "avg_prompt_throughput": round(load.prefill_tokens_per_s, 1),
        "avg_generation_throughput": round(load.decode_tokens_per_s, 1),
        "spec_decode_num_draft_tokens": totals.draft_tokens,
        "spec_decode_num_accepted_tokens": totals.accepted_tokens,
        "num_preemptions": 0 if loaded is None else loaded.stepper.preemptions,
        "num_requests_ended_for_memory": totals.ended_for_memory,
        **{f"memory_{name}_bytes": bytes_of.get(name) for name in _MEMORY},
    }


_MEMORY = ("active", "cache", "peak", "footprint", "limit")
