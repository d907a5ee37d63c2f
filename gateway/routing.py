"""Which model a name means, and which worker a request goes to. Pure.

The view of a worker is always a little old, and there may be several gateways: the choice is the
best of three sampled candidates, as the best of all would send every gateway to the same one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from gateway.registry import FIRST_SERVICE_S, WorkerView
from protocol.config import ModelConfig, WorkerConfig
from protocol.states import WorkerState

_SAMPLES = 3
_CANNOT_SERVE = frozenset({WorkerState.FAILED, WorkerState.PARKED})


def drain_cost(view: WorkerView, unmeasured_s: float = FIRST_SERVICE_S) -> float:
    """Seconds until the worker would be done with all it has, and with one request more.

    A worker that has served nothing yet is taken to need `unmeasured_s` for a request.
    """
    service_s = unmeasured_s if view.measured_s is None else view.measured_s
    batches = (view.taken + 1) / view.capacity.max_num_seqs
    return view.prefill_s + batches * service_s + _memory_cost(view)


def _memory_cost(view: WorkerView) -> float:
    if not view.capacity.kv_tokens:
        return 0.0
    used = min(view.load.kv_tokens / view.capacity.kv_tokens, 0.99)
    return 0.15 * used / (1 - used)


def replicas(views: Iterable[WorkerView], model: str) -> list[WorkerView]:
    """The workers that serve the model now, whether or not they have a place."""
    return [view for view in views if view.is_ready and view.serves(model)]


def candidates(
    ready: Iterable[WorkerView], now: float, *, tried: Collection[str], suspect_s: float
) -> list[WorkerView]:
    """Those that seem to have a place; silent ones only where there is no other."""
    free = [
        view
        for view in ready
        if view.taken < view.places and view.paused_until <= now and view.worker_id not in tried
    ]
    heard = [view for view in free if now - view.heartbeat_at < suspect_s]
    return heard or free


def cheapest(found: Sequence[WorkerView], rng: random.Random) -> WorkerView | None:
    """The best of three of them; equals by chance, so that several gateways do not all take the first.

    Those with a free slot come first, however slow: who waits in a worker cannot be sent elsewhere.
    """
    slots = [view for view in found if view.has_slot] or found
    sample = rng.sample(slots, min(_SAMPLES, len(slots)))
    measured = [view.measured_s for view in sample if view.measured_s is not None]
    # A new worker is taken to be as fast as the fastest: else nobody would ever try it.
    unmeasured_s = min(measured, default=FIRST_SERVICE_S)
    return min(sample, key=lambda view: drain_cost(view, unmeasured_s), default=None)


def served_models(
    configured: Sequence[WorkerConfig], views: Iterable[WorkerView], rules: Iterable[ModelConfig] = ()
) -> dict[str, list[str]]:
    """Every model's name with its aliases: configured ones first, then registered ones by name.

    The aliases of a configured worker are those of the configuration, which may be newer than the worker.
    """
    models: dict[str, list[str]] = {}
    named = [(worker.name, worker.aliases) for worker in configured]
    known_ids = {(worker.id, worker.name) for worker in configured}
    named += sorted(
        (view.card.name, view.card.aliases)
        for view in views
        if (view.worker_id, view.card.name) not in known_ids
    )
    for name, aliases in named:
        known = models.setdefault(name, [])
        known.extend(alias for alias in aliases if alias not in known)
    for rule in rules:
        if rule.name in models:
            known = models[rule.name]
            known.extend(alias for alias in rule.aliases if alias not in known)
    return models


def patterns_of(model: str, rules: Iterable[ModelConfig]) -> list[str]:
    """The patterns of names that mean the model."""
    return [pattern for rule in rules if rule.name == model for pattern in rule.patterns]


def resolve(asked: str | None, models: dict[str, list[str]], rules: Iterable[ModelConfig] = ()) -> str | None:
    """The model that a name, an alias or the first fitting pattern means; the only one where no name
    is given."""
    if asked is None:
        return next(iter(models)) if len(models) == 1 else None
    if asked in models:
        return asked
    named = next((name for name, aliases in models.items() if asked in aliases), None)
    if named is not None:
        return named
    fitting = (
        rule.name
        for rule in rules
        if rule.name in models and any(fnmatchcase(asked, pattern) for pattern in rule.patterns)
    )
    return next(fitting, None)


def is_hopeless(model: str, expected: Iterable[WorkerConfig], views: Iterable[WorkerView]) -> bool:
    """Whether no worker of the model can be hoped for.

    One that is expected may be starting; when it failed, its supervisor starts it again, or says that
    it will not: then it is not expected. One of `views` that is not connected may be starting again.
    """
    if any(worker.name == model for worker in expected):
        return False
    return all(view.connection and view.state in _CANNOT_SERVE for view in views if view.serves(model))
