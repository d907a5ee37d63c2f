"""Which models there are: those of the configuration, and those that workers brought along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from gateway import routing
from gateway.access import ANYBODY
from gateway.registry import Registry, WorkerView
from gateway.stall import hangs
from protocol.api_keys import ApiKey
from protocol.config import ModelConfig, RoutingConfig, WorkerConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.states import WorkerState
from protocol.values import Task

COMES_BACK_S = 60.0
"""So long a worker that is configured, or was there, is waited for without a connection: its
supervisor makes pauses of up to 30 s. One that is still away then is stopped, or was never started.
Without a supervisor only those are waited for that run."""

STALLED_S = 120.0
"""A load that shows no progress for so long is not waited for beyond the queue's time limit."""
_LOADING = frozenset({WorkerState.LOADING, WorkerState.WARMING})


class Catalog:
    """Owns what is configured, which changes when the configuration is read again."""

    def __init__(
        self, configured: Sequence[WorkerConfig], gateways: int, registry: Registry, now: float
    ) -> None:
        self._gateways = gateways
        self._registry = registry
        self._expected_since: dict[str, float] = {}
        self._down: frozenset[str] = frozenset()
        self._unattended: frozenset[str] = frozenset()
        self.rules: tuple[ModelConfig, ...] = ()
        """Further names of models."""
        self.stall_s = RoutingConfig().stall_s
        self.configure(configured, now)

    def configure(self, configured: Sequence[WorkerConfig], now: float) -> None:
        """The workers of the configuration; one that is new in it is expected from now on."""
        self.configured = configured
        self._expected_since = {worker.id: self._expected_since.get(worker.id, now) for worker in configured}

    def mark_down(self, worker_ids: Iterable[str], now: float) -> None:
        """Nobody starts these, parked or stopped on purpose; those that were marked before come now."""
        before, self._down = self._down, frozenset(worker_ids)
        for worker_id in before - self._down:
            self.left(worker_id, now)

    def mark_unattended(self, worker_ids: Iterable[str], now: float) -> None:
        """These do not run, and there is no supervisor that would start them."""
        before, self._unattended = self._unattended, frozenset(worker_ids)
        for worker_id in before - self._unattended:
            self.left(worker_id, now)

    def left(self, worker_id: str, now: float) -> None:
        """A worker went away: a configured one is expected back."""
        if worker_id in self._expected_since:
            self._expected_since[worker_id] = now

    def configured_ids(self) -> set[str]:
        return {worker.id for worker in self.configured}

    def models(self, caller: ApiKey = ANYBODY) -> dict[str, list[str]]:
        """Names with aliases, in a stable order: those that the caller may use."""
        served = routing.served_models(self.configured, self._registry.views(), self.rules)
        return {
            name: aliases
            for name, aliases in served.items()
            if caller.allows((name, *aliases, *routing.patterns_of(name, self.rules)))
        }

    def named(self, asked: str | None, caller: ApiKey = ANYBODY) -> str:
        """The model that a client's name means; the only one where it gives none. Raises `ClusterError`."""
        if asked is not None and self._is_plain(asked, caller):
            return asked
        return self._meant(asked, self.models(caller), caller)

    def named_for(self, task: Task, asked: str | None, caller: ApiKey = ANYBODY) -> str:
        """The same of a model for that task; the only one of these where no name is given."""
        if asked is not None and self._is_plain(asked, caller) and self._may_do(asked, task):
            return asked
        models = self.models(caller)
        able = {name: aliases for name, aliases in models.items() if self._may_do(name, task)}
        model = self._meant(asked, able if asked is None and able else models, caller)
        if not self._may_do(model, task):
            others = f"; models that can: {', '.join(able)}" if able else ""
            raise ClusterError(
                ErrorCode.UNSUPPORTED,
                f"the model {model!r} cannot {task.words}{others}",
                param="model",
                reason="unsupported_value",
            )
        return model

    def _may_do(self, model: str, task: Task) -> bool:
        """Whether a worker of the model is for that task, or none has told yet what the model is for."""
        workers = self.workers_of(model)
        return not workers or any(view.card.task == task for view in workers)

    def _meant(self, asked: str | None, models: dict[str, list[str]], caller: ApiKey) -> str:
        model = routing.resolve(asked, models, self.rules)
        if model is not None:
            return model
        meant = None if asked is None else routing.resolve(asked, self.models(), self.rules)
        if asked is not None and meant is not None:
            if caller.allows((asked,)):  # by a name that only a pattern of the model knows
                return meant
            allowed = ", ".join(models) or "none"
            raise ClusterError(
                ErrorCode.FORBIDDEN,
                f"this API key may not use the model {asked[:200]!r}; allowed are: {allowed}",
                param="model",
                reason="model_not_allowed",
            )
        served = ", ".join(models) or "none"
        if asked is None:
            raise ClusterError(
                ErrorCode.INVALID_REQUEST,
                f"model is missing; served are: {served}",
                param="model",
                reason="missing_required_parameter",
            )
        raise ClusterError(
            ErrorCode.MODEL_NOT_FOUND,
            f"the model {asked[:200]!r} does not exist; served are: {served}",
            param="model",
        )

    def _is_plain(self, name: str, caller: ApiKey) -> bool:
        """Whether a model itself is called like this, and the caller may use all."""
        known = any(worker.name == name for worker in self.configured) or bool(self.workers_of(name))
        return known and not caller.models

    def workers_of(self, model: str) -> list[WorkerView]:
        return [view for view in self._registry.views() if view.serves(model)]

    def check_connected(self, worker_id: str, model: str) -> None:
        """Raises `ClusterError` unless that worker, if one is named, is there with that model."""
        if not worker_id:
            return
        view = self._registry.named(worker_id)
        if view is None or not view.connection or not view.serves(model):
            message = f"no worker {worker_id[:100]!r} with {model!r} is connected; see: clusterctl status"
            raise ClusterError(ErrorCode.NO_WORKER_AVAILABLE, message, reason="worker_not_connected")

    def sees(self, model: str) -> bool:
        """Whether workers of the model take pictures."""
        return any("image" in view.card.modalities for view in self.workers_of(model))

    def is_cold(self, model: str) -> bool:
        """Whether nobody serves the model, and a worker is there that loads it, or would."""
        there = [view for view in self.workers_of(model) if view.connection]
        return not any(view.is_ready for view in there) and any(
            view.state in _LOADING or view.capacity.on_demand for view in there
        )

    def is_on_demand(self, model: str) -> bool:
        return any(view.capacity.on_demand for view in self.workers_of(model) if view.connection)

    def is_coming(self, model: str, now: float) -> bool:
        """Whether nobody serves the model yet, but a load moves on, or others will make room for it."""
        there = [view for view in self.workers_of(model) if view.connection]
        can_make_room = {v.node for v in self._registry.views() if v.resident_mb and v.capacity.on_demand}
        return not any(view.is_ready for view in there) and any(
            now - view.moved_at < STALLED_S
            if view.state in _LOADING
            else view.makes_room or (view.state == WorkerState.IDLE and view.node in can_make_room)
            for view in there
        )

    def takes_over(self, model: str) -> bool:
        """Whether workers of the model can go on where another one was lost, and may."""
        allowed = all(rule.takeover for rule in self.rules if rule.name == model)
        return allowed and any(view.card.can_resume for view in self.workers_of(model))

    def state(self, model: str) -> Literal["loaded", "loading", "not-loaded"]:
        """As `/v1/models` shows it."""
        there = [view for view in self.workers_of(model) if view.connection]
        if any(view.is_ready for view in there):
            return "loaded"
        return "loading" if any(view.state in _LOADING for view in there) else "not-loaded"

    def why_not_loaded(self, model: str) -> str:
        """What an idle worker says about it, to be put into a sentence."""
        idle = [view.detail for view in self.workers_of(model) if view.state == WorkerState.IDLE]
        return next((f" ({detail})" for detail in idle if detail), "")

    def slots(self, model: str) -> float:
        """This gateway's share of the model's slots, those of workers that are yet to come included."""
        there = [view for view in self.workers_of(model) if view.connection]
        ids = {view.worker_id for view in there}
        coming = [w for w in self.configured if w.name == model and w.id not in ids]
        return sum(view.capacity.max_num_seqs / view.gateways for view in there) + sum(
            worker.slots / self._gateways for worker in coming
        )

    def is_hopeless(self, model: str, now: float) -> bool:
        views = [
            v
            for v in self._registry.views()
            if v.connection or self._comes_back(v.worker_id, now - v.heard_at)
        ]
        there = {view.worker_id for view in views if view.connection}
        expected = [
            w
            for w in self._wanted()
            if w.id in there or self._comes_back(w.id, now - self._expected_since[w.id])
        ]
        return routing.is_hopeless(model, expected, views)

    def _comes_back(self, worker_id: str, away_s: float) -> bool:
        return away_s < COMES_BACK_S and worker_id not in self._down | self._unattended

    def _wanted(self) -> list[WorkerConfig]:
        return [worker for worker in self.configured if worker.id not in self._down]

    def unready(self) -> list[str]:
        """Configured models that no worker serves at the moment, but should; none that is on demand."""
        names = dict.fromkeys(worker.name for worker in self._wanted() if worker.residency == "always")
        return [name for name in names if not any(map(self._can_serve, self.workers_of(name)))]

    def _can_serve(self, view: WorkerView) -> bool:
        return view.is_ready and not hangs(view, self.stall_s)
