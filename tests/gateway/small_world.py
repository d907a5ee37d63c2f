"""Workers, memory and gateways under a clock of the test's own, driven by the real policies."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.registry import WorkerView
from gateway.residency import Load, Residency, Unload
from protocol.values import Capacity, ModelCard
from protocol.values import Load as Work
from worker.tenancy import Tenancy

STEP_S = 0.1


@dataclass
class Model:
    """What a model takes, and how fast it is."""

    mb: int
    load_s: float
    service_s: float
    slots: int = 2


@dataclass
class Worker:
    """One on-demand worker, as `worker.residence` has it live."""

    name: str
    model: Model
    state: str = "idle"
    held_mb: int = 0
    until: float = 0.0
    """When the present load is over, or the model is freed."""
    since: float = 0.0
    makes_room: bool = False
    used_at: float = 0.0
    ends: list[float] = field(default_factory=list)
    """Of the requests in hand."""
    tenancy: Tenancy = field(default_factory=lambda: Tenancy(600))
    stays: list[tuple[float, int, bool]] = field(default_factory=list)
    """Of each model that was freed: how long it was there, what it served, whether it was in use."""
    served: int = 0
    loads: int = 0

    def enter(self, state: str, now: float) -> None:
        self.state, self.since = state, now

    def view(self, budget_mb: int, now: float) -> WorkerView:
        return WorkerView(
            connection=self.name.encode(),
            worker_id=self.name,
            incarnation="1",
            node="local",
            pid=1,
            card=ModelCard(name=self.name),
            capacity=Capacity(
                max_num_seqs=self.model.slots,
                on_demand=True,
                memory_mb=self.model.mb,
                memory_budget_mb=budget_mb,
            ),
            state=self.state,
            heard_at=now,
            heartbeat_at=now,
            load=Work(running=len(self.ends)),
            state_since=self.since,
            used_at=self.used_at,
            resident_mb=self.held_mb,
            makes_room=self.makes_room,
            load_s=self.model.load_s if self.loads else 0.0,
        )

    def tick(self, now: float) -> None:
        over = [end for end in self.ends if end <= now]
        self.ends = [end for end in self.ends if end > now]
        for _ in over:
            self.tenancy.used(now)
            self.served += 1
        if over or self.ends:
            self.used_at = now
        if self.state == "loading" and now >= self.until:
            self.enter("ready", now)
            self.tenancy.begin(now)
            self.used_at = now
            self.served = 0
        elif self.makes_room and not self.ends and not self.until:
            self.until = now + STEP_S
        elif self.makes_room and self.until and now >= self.until:
            self.enter("idle", now)
            self.held_mb, self.until, self.makes_room = 0, 0.0, False

    def unload(self, now: float, *, drain: bool) -> None:
        if self.state != "ready" or (self.ends and not drain) or not self.tenancy.may_end(now):
            return
        self.stays.append((now - self.since, self.served + len(self.ends), bool(self.ends)))
        self.makes_room, self.until = True, 0.0
        self.enter("draining", now)


class Gateway:
    """A queue for each model, and the policy."""

    def __init__(self, lag_steps: int) -> None:
        self.queues: dict[str, list[float]] = {}
        self.waits: list[float] = []
        self.policy = Residency()
        self._seen: list[list[WorkerView]] = []
        self._lag = lag_steps

    def step(self, world: World, now: float) -> None:
        self._seen.append([worker.view(world.budget_mb, now) for worker in world.workers.values()])
        self._seen = self._seen[-1 - self._lag :]
        views = self._seen[0]
        for name, queue in self.queues.items():
            worker = world.workers[name]
            while queue and worker.state == "ready" and len(worker.ends) < worker.model.slots:
                self.waits.append(now - queue.pop(0))
                worker.ends.append(now + worker.model.service_s)
                worker.used_at = now
        waiting = {name: queue[0] for name, queue in self.queues.items() if queue}
        for action in self.policy.decide(views, waiting, now):
            world.perform(action, now)


class World:
    """One machine. `step` is a tenth of a second."""

    def __init__(
        self, models: dict[str, Model], budget_mb: int, gateways: int = 1, lag_steps: int = 0
    ) -> None:
        self.budget_mb = budget_mb
        self.workers = {name: Worker(name, model) for name, model in models.items()}
        self.gateways = [Gateway(lag_steps) for _ in range(gateways)]
        self.now = 0.0
        self.refused_loads = 0

    @property
    def held_mb(self) -> int:
        return sum(worker.held_mb for worker in self.workers.values())

    @property
    def waiting(self) -> int:
        return sum(len(queue) for gateway in self.gateways for queue in gateway.queues.values())

    def ask(self, name: str, gateway: int = 0) -> None:
        self.gateways[gateway % len(self.gateways)].queues.setdefault(name, []).append(self.now)

    def perform(self, action: Load | Unload, now: float) -> None:
        worker = self.workers[action.worker_id]
        if isinstance(action, Unload):
            worker.unload(now, drain=action.drain)
        elif worker.state == "idle":
            if self.held_mb + worker.model.mb > self.budget_mb:
                self.refused_loads += 1
                return
            worker.held_mb = worker.model.mb
            worker.loads += 1
            worker.until = now + worker.model.load_s
            worker.enter("loading", now)

    def step(self) -> None:
        self.now += STEP_S
        for worker in self.workers.values():
            worker.tick(self.now)
        for gateway in self.gateways:
            gateway.step(self, self.now)
