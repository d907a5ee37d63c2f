"""How a worker is chosen: ours, which is production's, and what it is compared with.

The others choose only; who may be chosen, and all that follows, is production's for each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from gateway import placement
from gateway.placement import Choice, Wanted
from gateway.registry import WorkerView

Seen = Mapping[str, int]
"""What each worker had in hand at its last heartbeat."""


def _share(view: WorkerView) -> float:
    return view.taken / view.capacity.max_num_seqs


def _random(_seen: Seen) -> Choice:
    def choose(
        _wanted: Wanted, _ready: Sequence[WorkerView], free: Sequence[WorkerView], rng: random.Random
    ) -> WorkerView | None:
        return rng.choice(free) if free else None

    return choose


def _round_robin(_seen: Seen) -> Choice:
    turn = 0

    def choose(
        _wanted: Wanted, ready: Sequence[WorkerView], free: Sequence[WorkerView], _rng: random.Random
    ) -> WorkerView | None:
        nonlocal turn
        if not free:
            return None
        ids = {view.worker_id for view in free}
        while True:
            turn = (turn + 1) % len(ready)
            if ready[turn].worker_id in ids:
                return ready[turn]

    return choose


def _best_of(samples: int | None, cost: Callable[[WorkerView], float]) -> Choice:
    """The cheapest of so many (None: of all), equals by chance."""

    def choose(
        _wanted: Wanted, _ready: Sequence[WorkerView], free: Sequence[WorkerView], rng: random.Random
    ) -> WorkerView | None:
        sample = rng.sample(free, min(samples or len(free), len(free)))
        return min(sample, key=cost, default=None)

    return choose


def _snapshot(seen: Seen) -> Callable[[WorkerView], float]:
    """The load of the last heartbeat, whatever happened since."""
    return lambda view: seen.get(view.worker_id, 0) / view.capacity.max_num_seqs


OURS = "ours"
P2C = "P2C"
POLICIES: Mapping[str, Callable[[Seen], Choice]] = {
    "random": _random,
    "round robin": _round_robin,
    "least-loaded, snapshot": lambda seen: _best_of(None, _snapshot(seen)),
    "least-loaded": lambda seen: _best_of(None, _share),
    "P2C, snapshot": lambda seen: _best_of(2, _snapshot(seen)),
    P2C: lambda seen: _best_of(2, _share),
    OURS: lambda seen: placement.best,
}
