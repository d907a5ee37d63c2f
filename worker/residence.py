"""Whether the model is in memory: loaded when asked for, freed when idle or when others need the room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from protocol.addresses import Home
from protocol.config import ClusterConfig, WorkerConfig
from protocol.states import WorkerState
from worker.claim import Claim, NoRoomError
from worker.core import Core
from worker.engine.base import BaseEngine, run_blocking_startup_work
from worker.engine.output import FleetEngine, Inspectable
from worker.life import Life
from worker.memory import budget_mb, give_back
from worker.startup import Startup
from worker.tenancy import Tenancy

logger = logging.getLogger(__name__)

_CLOSED = {WorkerState.READY: None, WorkerState.DRAINING: "draining", WorkerState.IDLE: "unloaded"}
"""Why nothing new is taken, by the state of a worker that has settled."""

Said = Callable[[bool], None]
"""Told that the state or its detail changed; with True, that the model's card did, too."""


class Residence:
    """Owns the worker's state, and the model's coming and going. On the event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        worker: WorkerConfig,
        engine: BaseEngine,
        core: Core,
        home: Home,
        said: Said,
    ) -> None:
        self._worker = worker
        self._engine = engine
        self._core = core
        self._said = said
        self._claim = Claim(home, worker.id)
        self._startup = Startup(engine, self.enter, worker.load_stall_s)
        self._tenancy = Tenancy(worker.idle_timeout)
        self._news = asyncio.Event()
        self._wanted = not self.on_demand
        self._drained = False
        self._freeing: asyncio.Task[None] | None = None
        self.life = Life()
        self.loaded = False
        self.makes_room = False
        """The model goes when nothing is in hand any more."""
        self.budget_mb = budget_mb(config.residency)
        self.memory_mb = worker.memory_mb or 0
        self.load_s = 0.0
        """What the last load took."""

    @property
    def on_demand(self) -> bool:
        return self._worker.residency == "on_demand"

    @property
    def held_mb(self) -> int:
        """Memory that is held for the model."""
        return self._claim.held_mb

    @property
    def idle_s(self) -> float:
        """How long the loaded model has had nothing to do."""
        return self._tenancy.idle_s(self._core.held, self._now()) if self.loaded else 0.0

    @property
    def is_stuck(self) -> bool:
        """The engine could not be stopped: its threads may keep the process from ending."""
        return self._startup.is_stuck

    # --- the life of the model ---

    async def run(self) -> None:
        """Load and free it, until cancelled. Raises what keeps it from being loaded."""
        await run_blocking_startup_work(self._inspect)
        self._said(True)
        if self.on_demand:
            self._settle()
        while True:
            await self._until(lambda: self._wanted and not self._drained)
            if await self._load():
                await self._stay()
                await self._free()

    async def end(self) -> None:
        """Free the model, whatever its state, once `run` has ended. Never raises."""
        if self._freeing is not None:
            await asyncio.wait({self._freeing})
        await self._startup.stop()
        self._claim.release()

    def cut_short(self) -> None:
        """Make a load end after the piece that it is at."""
        if isinstance(self._engine, FleetEngine):
            self._engine.request_stop()

    def _inspect(self) -> None:
        """What the files tell without being loaded. Raises `ValueError`."""
        if isinstance(self._engine, Inspectable):
            found_mb = self._engine.inspect()
            self.memory_mb = found_mb if self._worker.memory_mb is None else self.memory_mb
        if self.on_demand and self.memory_mb > self.budget_mb:
            raise ValueError(
                f"it needs {self.memory_mb} MB, and models may take {self.budget_mb} MB on this machine;"
                " raise memory_budget_mb in [residency], or correct memory_mb of the worker"
            )

    async def _load(self) -> bool:
        """Whether there was room."""
        self._wanted = False
        budget_mb = self.budget_mb if self.on_demand else None
        began = self._now()
        try:
            await run_blocking_startup_work(lambda: self._claim.take(self.memory_mb, budget_mb))
        except NoRoomError as error:
            logger.info("worker %s cannot load: %s", self._worker.id, error)
            self.life.note = str(error)
            self._said(False)
            return False
        self.life.note = ""
        await self._startup.start()
        self.load_s = self._now() - began
        self.loaded = True
        self._tenancy.begin(self._now())
        # The card before any heartbeat: a gateway that refuses it must not have taken us for ready.
        self._core.closed = None
        self.life.enter(WorkerState.READY)
        logger.info("worker %s is ready after %.1f s", self._worker.id, self.load_s)
        self._said(True)
        self._settle()
        return True

    async def _stay(self) -> None:
        """Until the model is to go and nothing is in hand."""
        while not self.makes_room:
            left_s = self._tenancy.left_s(self._core.held, self._now()) if self.on_demand else None
            if left_s == 0:
                self._make_room("it was idle for too long")
            else:
                await self._news_within(left_s)
        await self._until(lambda: not self._core.held)

    async def _free(self) -> None:
        """Not to be broken off: half a model is of no use to anybody."""
        self._freeing = asyncio.get_running_loop().create_task(self._give_up_model())
        await asyncio.shield(self._freeing)
        self._freeing = None
        if self.is_stuck:
            raise RuntimeError("the engine did not free its model")
        self.life.note = ""
        self._settle()

    async def _give_up_model(self) -> None:
        self.loaded = False
        await self._startup.stop()
        await asyncio.to_thread(give_back)
        await asyncio.to_thread(self._claim.release)
        self.makes_room = False

    # --- what is asked ---

    def load(self) -> None:
        """Somebody asks for the model. One that is being freed is asked for again later."""
        if self.life.state is WorkerState.IDLE:
            self._wanted = True
            self._news.set()

    def unload(self, *, drain: bool) -> None:
        """Others need the room. Without `drain`, only when nothing is in hand."""
        if not self.loaded or self.makes_room or (self._core.held and not drain):
            return
        if self._tenancy.may_end(self._now()):
            self._make_room("others need the room")

    def drain(self) -> None:
        """The operator wants nothing new to be taken; an idle worker does not load."""
        self._drained = True
        self._settle_if_settled()

    def undrain(self) -> None:
        self._drained = False
        self._settle_if_settled()
        self._news.set()

    def used(self) -> None:
        """A request is over."""
        self._tenancy.used(self._now())
        self._news.set()

    def close(self) -> None:
        """The process is to end: nothing new is taken."""
        self._core.closed = "draining"
        if self.life.state is WorkerState.READY:
            self.enter(WorkerState.DRAINING)

    # --- states ---

    def enter(self, state: WorkerState) -> None:
        self.life.enter(state)
        logger.info("worker %s is %s", self._worker.id, state)
        self._said(False)

    def _make_room(self, why: str) -> None:
        logger.info("worker %s frees its model: %s", self._worker.id, why)
        self.makes_room = True
        self.life.note = f"the model is being freed: {why}"
        self._settle()
        self._news.set()

    def _settle_if_settled(self) -> None:
        if self.life.state in _CLOSED and not self.life.leaving:
            self._settle()

    def _settle(self) -> None:
        """Be what loaded or not, drained or not, makes of the worker."""
        state = WorkerState.READY if self.loaded else WorkerState.IDLE
        if self._drained or self.makes_room:
            state = WorkerState.DRAINING
        self._core.closed = _CLOSED[state]
        if state is not self.life.state:
            self.enter(state)

    # --- waiting ---

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._news_within(None)

    async def _news_within(self, seconds: float | None) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
