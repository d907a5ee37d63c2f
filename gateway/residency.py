"""Which models are loaded: from what waits and what the workers say, what to load and what to free. Pure.

The views are a little old, and other gateways decide too: each worker checks the memory itself before
it loads, and does not free a model that serves, or that was loaded for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.registry import WorkerView
from protocol.states import WorkerState

LEAST_PATIENCE_S = 5.0
"""A request for a model without room waits at least so long before a model that is in use makes room."""
LEAST_STAY_S = 5.0
"""A model in use keeps its place at least so long."""
RECENT_S = 2.0
"""A model that was used less than this ago is in use."""
FULL_S = 1.0
"""A further replica is loaded when requests have waited so long for the others."""
ORDER_S = 2.0
"""An order that shows no effect in so long is given again."""
WISH_S = 60.0
"""A model that was asked for by somebody who did not wait is wanted for so long."""
FIRST_LOAD_S = 10.0
"""How long a load is taken to last until one was measured."""

_UNBOUNDED_MB = 1 << 60


@dataclass(frozen=True)
class Load:
    """Have the worker load its model."""

    worker_id: str


@dataclass(frozen=True)
class Unload:
    """Have the worker free its model; with `drain`, after it has finished what it has in hand."""

    worker_id: str
    drain: bool


Action = Load | Unload


@dataclass(frozen=True)
class Order:
    """An action that the worker was told."""

    action: Action
    given_at: float

    def is_pending(self, view: WorkerView, now: float) -> bool:
        """Whether its effect is still to come."""
        if now - self.given_at >= ORDER_S or not view.connection:
            return False
        if isinstance(self.action, Load):
            return view.state == WorkerState.IDLE
        return bool(view.resident_mb) and not view.makes_room


class Residency:
    """Owns the orders that have not shown yet, and the wishes of those who did not wait."""

    def __init__(self) -> None:
        self._orders: dict[str, Order] = {}
        self._wishes: dict[str, tuple[float, float]] = {}

    def wish(self, model: str, now: float) -> None:
        """Somebody asked for the model and did not wait."""
        first, _last = self._wishes.get(model, (now, now))
        self._wishes[model] = (first, now)

    def decide(self, views: Iterable[WorkerView], waiting: Mapping[str, float], now: float) -> list[Action]:
        """What to do now. `waiting` tells, for each model that is waited for, since when."""
        there = {view.worker_id: view for view in views if view.connection}
        self._orders = {
            name: order
            for name, order in self._orders.items()
            if name in there and order.is_pending(there[name], now)
        }
        wanted = self._wanted(there.values(), waiting, now)
        if not wanted:
            return []
        decision = _Decision(tuple(there.values()), self._orders, wanted, now)
        for model in sorted(wanted, key=lambda name: wanted[name]):
            decision.provide(model)
        return decision.actions

    def _wanted(
        self, there: Iterable[WorkerView], waiting: Mapping[str, float], now: float
    ) -> dict[str, float]:
        """Waited and wished for, since when."""
        ready = {view.card.name for view in there if view.is_ready}
        self._wishes = {
            model: (first, last)
            for model, (first, last) in self._wishes.items()
            if now - last < WISH_S and model not in ready
        }
        wanted = dict(waiting)
        for model, (first, _last) in self._wishes.items():
            wanted[model] = min(first, wanted.get(model, first))
        return wanted


@dataclass
class _Node:
    """The memory of one machine (MiB)."""

    name: str
    room_mb: int
    """Free, and promised to nobody."""
    freeing_mb: int
    """About to be free."""


@dataclass
class _Decision:
    """One look at the fleet: memory is given out, and orders are added, as the decision goes on."""

    there: Sequence[WorkerView]
    orders: dict[str, Order]
    wanted: Mapping[str, float]
    now: float
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._nodes = {name: self._node(name) for name in {view.node for view in self.there}}

    def provide(self, model: str) -> None:
        """See to it that the model is served: load it, or make room for it."""
        mine = [view for view in self.there if view.serves(model)]
        idle = [view for view in mine if self._is_idle(view)]
        if not idle or any(self._comes(view) for view in mine):
            return
        ready = [view for view in mine if view.is_ready]
        waited_s = self.now - self.wanted[model]
        if ready and (any(view.taken < view.places for view in ready) or waited_s < FULL_S):
            return
        idle.sort(key=lambda view: -self._nodes[view.node].room_mb)
        for view in idle:
            node = self._nodes[view.node]
            if view.capacity.memory_mb <= node.room_mb:
                node.room_mb -= view.capacity.memory_mb
                self._order(Load(view.worker_id))
                return
        if not ready:
            self._make_room(idle, waited_s)

    def _order(self, action: Action) -> None:
        self.actions.append(action)
        self.orders[action.worker_id] = Order(action, self.now)

    def _make_room(self, idle: Sequence[WorkerView], waited_s: float) -> None:
        """Free what is not used, on the node where that is enough; after a time, also what is."""
        for view in idle:
            if self._make_room_for(view, in_use=False, impatient=waited_s >= _patience_s(view)):
                return
        for view in idle:
            if waited_s >= _patience_s(view) and self._make_room_for(view, in_use=True, impatient=True):
                return

    def _make_room_for(self, view: WorkerView, *, in_use: bool, impatient: bool) -> bool:
        """Whether there will be room then."""
        node = self._nodes[view.node]
        missing_mb = view.capacity.memory_mb - node.room_mb - node.freeing_mb
        victims = self._victims(node, missing_mb, in_use=in_use)
        if missing_mb > sum(victim.resident_mb for victim in victims):
            return False
        for victim in victims:
            # One that seems idle may just have been given something: in the end it makes room all the same.
            self._order(Unload(victim.worker_id, drain=impatient and self._has_had_its_turn(victim)))
            node.freeing_mb += victim.resident_mb
        # What becomes free is for this model; younger requests do not take it.
        node.room_mb -= view.capacity.memory_mb
        return True

    def _victims(self, node: _Node, missing_mb: int, *, in_use: bool) -> list[WorkerView]:
        """The least recently used that give so much together, and none that is not needed for it."""
        found = [view for view in self.there if view.node == node.name and self._may_go(view, in_use=in_use)]
        found.sort(key=self._worth)
        chosen: list[WorkerView] = []
        for view in found:
            if sum(victim.resident_mb for victim in chosen) < missing_mb:
                chosen.append(view)
        for view in chosen[::-1]:
            if sum(victim.resident_mb for victim in chosen) - view.resident_mb >= missing_mb:
                chosen.remove(view)
        return chosen

    def _may_go(self, view: WorkerView, *, in_use: bool) -> bool:
        if not view.capacity.on_demand or not view.resident_mb or self._goes(view):
            return False
        if view.state not in (WorkerState.READY, WorkerState.DRAINING):
            return False
        return not self._is_in_use(view) or (in_use and self._has_had_its_turn(view))

    def _worth(self, view: WorkerView) -> tuple[bool, float]:
        """The least goes first: of idle ones the last use tells, of those in use the time they had."""
        return (True, view.state_since) if self._is_in_use(view) else (False, view.used_at)

    def _is_in_use(self, view: WorkerView) -> bool:
        """Also between two requests, where a load takes longer than such a pause."""
        if view.taken or not view.is_ready:
            return view.taken > 0
        is_recent = self.now - view.used_at < min(RECENT_S, view.load_s)
        return is_recent or view.card.name in self.wanted

    def _has_had_its_turn(self, view: WorkerView) -> bool:
        """It was there for a while, and those for whom it was loaded are served."""
        owes_nobody = self.wanted.get(view.card.name, self.now) > view.state_since
        return owes_nobody and self.now - view.state_since >= max(LEAST_STAY_S, view.load_s)

    def _is_idle(self, view: WorkerView) -> bool:
        return (
            view.capacity.on_demand and view.state == WorkerState.IDLE and view.worker_id not in self.orders
        )

    def _comes(self, view: WorkerView) -> bool:
        """It will have its model without being told."""
        if view.state == WorkerState.IDLE:
            return view.worker_id in self.orders
        starts = view.state == WorkerState.STARTING and not view.capacity.on_demand
        return starts or view.state in (WorkerState.LOADING, WorkerState.WARMING)

    def _goes(self, view: WorkerView) -> bool:
        """It will be without its model without being told."""
        return view.makes_room or (bool(view.resident_mb) and view.worker_id in self.orders)

    def _node(self, name: str) -> _Node:
        mine = [view for view in self.there if view.node == name]
        budgets = [v.capacity.memory_budget_mb for v in mine if v.capacity.memory_budget_mb is not None]
        held_mb = sum(
            max(view.resident_mb, view.capacity.memory_mb) if self._comes(view) else view.resident_mb
            for view in mine
        )
        freeing_mb = sum(view.resident_mb for view in mine if self._goes(view))
        return _Node(name, min(budgets, default=_UNBOUNDED_MB) - held_mb, freeing_mb)


def _patience_s(view: WorkerView) -> float:
    return max(LEAST_PATIENCE_S, 2 * view.load_s)


def ready_in_s(workers: Iterable[WorkerView], now: float) -> float:
    """When a model that is not loaded may be there, if nothing stands in its way: 1 to 30 s."""
    return min(30.0, max(1.0, min((_left_s(view, now) for view in workers), default=FIRST_LOAD_S)))


def _left_s(view: WorkerView, now: float) -> float:
    usual_s = view.load_s or FIRST_LOAD_S
    return usual_s if view.state == WorkerState.IDLE else max(0.0, usual_s - (now - view.state_since))
