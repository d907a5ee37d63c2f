"""The workers as `GET /admin/state` shows them: those that spoke, and those only configured. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.breaker import BreakerState
from gateway.registry import WorkerView
from protocol.config import WorkerConfig
from protocol.states import WorkerState

_ABSENT = "not connected"


def workers(
    configured: Iterable[WorkerConfig],
    views: Iterable[WorkerView],
    refusals: Mapping[str, str],
    breaker: Callable[[WorkerView], BreakerState],
    now: float,
) -> list[dict[str, Any]]:
    """Configured ones in their order, then the others by id."""
    seen = {view.worker_id: _seen(view, breaker(view), now) for view in views}
    found = [seen.pop(c.id) if c.id in seen else _unseen(c) for c in configured]
    found += [seen[worker_id] for worker_id in sorted(seen)]
    for worker in found:
        why = refusals.get(worker["id"])
        if why is not None and worker["detail"] == _ABSENT:
            worker |= {"detail": "refused", "last_error": why}
    return found


def _seen(view: WorkerView, breaker: BreakerState, now: float) -> dict[str, Any]:
    return {
        "id": view.worker_id,
        "model": view.card.name,
        "aliases": list(view.card.aliases),
        "node": view.node,
        "version": view.version if view.connection else None,
        "engine": view.card.engine,
        "state": view.state,
        "detail": view.detail if view.connection else _ABSENT,
        "progress": view.progress,
        "pid": view.pid if view.connection else None,
        "incarnation": view.incarnation,
        "running": view.load.running,
        "waiting": view.load.waiting,
        "max_num_seqs": view.capacity.max_num_seqs,
        "max_waiting": view.capacity.max_waiting,
        "prefill_tokens": view.load.prefill_tokens,
        "kv_tokens": view.load.kv_tokens,
        "on_demand": view.capacity.on_demand,
        "memory_mb": view.capacity.memory_mb,
        "resident_mb": view.resident_mb,
        "decode_tokens_per_s": round(view.decode_tokens_per_s, 1),
        "first_token_s": None if view.first_token_s is None else round(view.first_token_s, 3),
        "state_age_s": round(max(0.0, now - view.state_since), 3),
        "rejected": view.rejected,
        "breaker": breaker,
        "last_error": view.last_error,
        "restarts": view.restarts,
        "heartbeat_age_s": round(max(0.0, now - view.heartbeat_at), 3),
    }


def _unseen(config: WorkerConfig) -> dict[str, Any]:
    """A worker that is configured but has not said anything yet."""
    return {
        "id": config.id,
        "model": config.name,
        "aliases": list(config.aliases),
        "node": config.node,
        "version": None,
        "engine": config.engine,
        "state": WorkerState.STOPPED,
        "detail": _ABSENT,
        "progress": None,
        "pid": None,
        "incarnation": None,
        "running": 0,
        "waiting": 0,
        "max_num_seqs": config.slots,
        "max_waiting": config.waiting_room,
        "prefill_tokens": 0,
        "kv_tokens": 0,
        "on_demand": config.residency == "on_demand",
        "memory_mb": config.memory_mb,
        "resident_mb": 0,
        "decode_tokens_per_s": 0.0,
        "first_token_s": None,
        "state_age_s": None,
        "rejected": 0,
        "breaker": BreakerState.CLOSED,
        "last_error": "",
        "restarts": None,
        "heartbeat_age_s": None,
    }
