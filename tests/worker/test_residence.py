"""The model's coming and going in one process: orders, faults and ends at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.addresses import Home
from protocol.config import ClusterConfig, ResidencyConfig, WorkerConfig
from protocol.values import Capacity
from worker.claim import Claim
from worker.core import Core
from worker.engine.fake import FakeEngine
from worker.residence import Residence


class Engine(FakeEngine):
    """Takes 60 MB. Its stop waits for `may_stop`, where that is set."""

    def __init__(self, **options: Any) -> None:
        super().__init__("m", weights_mb=60, **options)
        self.stops = 0
        self.stopping = 0
        self.most_stopping = 0
        self.may_stop: asyncio.Event | None = None
        self.stop_fault: Exception | None = None

    async def stop(self) -> None:
        self.stops += 1
        self.stopping += 1
        self.most_stopping = max(self.most_stopping, self.stopping)
        if self.may_stop is not None:
            await self.may_stop.wait()
        self.stopping -= 1
        if self.stop_fault is not None:
            raise self.stop_fault
        await super().stop()


class World:
    """A residence with what it stands on; `states` are what it said."""

    def __init__(self, home: Path, engine: Engine, **worker: Any) -> None:
        (home / "run").mkdir(exist_ok=True)
        config = ClusterConfig(version=1, residency=ResidencyConfig(memory_budget_mb=100))
        settings = WorkerConfig(id="w", model="m", engine="fake", **{"residency": "on_demand"} | worker)
        self.engine = engine
        self.home = Home(home)
        self.core = Core(
            engine,
            Capacity(max_num_seqs=2),
            lambda _gateway, _message: None,
            freed=lambda: None,
            broken=lambda _why: None,
        )
        self.states: list[str] = []
        self.residence = Residence(config, settings, engine, self.core, self.home, self._said)
        self.run = asyncio.get_running_loop().create_task(self.residence.run())

    def _said(self, new_card: bool) -> None:
        if not self.states or self.states[-1] != self.residence.life.state:
            self.states.append(str(self.residence.life.state))

    def stands(self) -> tuple[str | None, int, bool]:
        """Why nothing is taken, what is held, and whether the model is there."""
        return self.core.closed, self.residence.held_mb, self.residence.loaded

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_state(self, state: str) -> None:
        await self.until(lambda: self.residence.life.state == state)

    async def end(self) -> None:
        """As the server does it."""
        self.residence.cut_short()
        self.run.cancel()
        await asyncio.wait({self.run})
        await self.residence.end()
        assert not self.home.memory_claim("w").exists()


def test_an_idle_worker_loads_serves_and_is_idle_again(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine())
        await world.until_state("idle")
        assert world.stands() == ("unloaded", 0, False)
        world.residence.load()
        await world.until_state("ready")
        assert world.stands() == (None, 60, True)
        world.residence.used()
        world.residence.unload(drain=False)
        await world.until_state("idle")
        assert world.stands() == ("unloaded", 0, False)
        assert world.states == ["starting", "idle", "loading", "warming", "ready", "draining", "idle"]
        await world.end()

    asyncio.run(scenario())


def test_what_is_always_loaded_loads_by_itself_and_stays(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine(), residency="always", idle_timeout=0.05)
        await world.until_state("ready")
        await asyncio.sleep(0.2)
        assert world.residence.life.state == "ready"
        await world.end()

    asyncio.run(scenario())


def test_an_end_while_it_loads_stops_the_load_and_gives_the_memory_back(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine(load_s=600.0))
        await world.until_state("idle")
        world.residence.load()
        await world.until_state("loading")
        assert world.residence.held_mb == 60
        await world.end()
        assert world.residence.held_mb == 0

    asyncio.run(scenario())


def test_an_end_while_it_is_freed_waits_until_that_is_done(tmp_path):
    async def scenario() -> None:
        engine = Engine()
        world = World(tmp_path, engine)
        await world.until_state("idle")
        world.residence.load()
        await world.until_state("ready")
        world.residence.used()
        engine.may_stop = asyncio.Event()
        world.residence.unload(drain=False)
        await world.until(lambda: engine.stops == 1)
        ending = asyncio.create_task(world.end())
        await asyncio.sleep(0.1)
        assert not ending.done()
        engine.may_stop.set()
        await ending
        assert (engine.stops, engine.most_stopping) == (2, 1)
        assert not world.residence.is_stuck

    asyncio.run(scenario())


def test_an_engine_that_does_not_let_go_of_its_model_ends_the_process(tmp_path):
    async def scenario() -> None:
        engine = Engine()
        world = World(tmp_path, engine)
        await world.until_state("idle")
        world.residence.load()
        await world.until_state("ready")
        world.residence.used()
        engine.stop_fault = OSError("no")
        world.residence.unload(drain=False)
        with pytest.raises(RuntimeError, match="did not free its model"):
            await world.run
        assert world.residence.is_stuck

    asyncio.run(scenario())


def test_a_load_that_fails_ends_the_residence_with_its_reason(tmp_path):
    class Damaged(Engine):
        def prepare_for_start(self) -> None:
            raise ValueError("the weights are damaged")

    async def scenario() -> None:
        world = World(tmp_path, Damaged())
        await world.until_state("idle")
        world.residence.load()
        with pytest.raises(ValueError, match="damaged"):
            await world.run
        await world.residence.end()
        assert world.residence.held_mb == 0

    asyncio.run(scenario())


def test_a_worker_that_was_drained_while_it_loaded_is_drained_when_it_is_loaded(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine(load_s=0.2))
        await world.until_state("idle")
        world.residence.load()
        await world.until_state("loading")
        world.residence.drain()
        await world.until_state("draining")
        assert world.residence.loaded
        assert world.core.closed == "draining"
        world.residence.undrain()
        assert world.residence.life.state == "ready"
        await world.end()

    asyncio.run(scenario())


def test_a_drained_worker_is_freed_when_it_is_idle_for_too_long_and_stays_drained(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine(), idle_timeout=0.3)
        await world.until_state("idle")
        world.residence.load()
        await world.until_state("ready")
        world.residence.drain()
        await world.until(lambda: not world.residence.held_mb)
        assert world.residence.life.state == "draining"
        world.residence.undrain()
        await world.until_state("idle")
        await world.end()

    asyncio.run(scenario())


def test_a_load_that_was_asked_for_before_a_drain_comes_after_it_only_if_asked_again(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine())
        await world.until_state("idle")
        world.residence.drain()
        world.residence.load()
        await asyncio.sleep(0.1)
        world.residence.undrain()
        await asyncio.sleep(0.1)
        assert world.residence.life.state == "idle"
        await world.end()

    asyncio.run(scenario())


def test_a_drain_right_after_an_order_to_load_comes_first(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine())
        await world.until_state("idle")
        world.residence.load()
        world.residence.drain()
        await asyncio.sleep(0.1)
        assert world.residence.life.state == "draining"
        assert not world.run.done()
        world.residence.undrain()
        await world.until_state("ready")
        await world.end()

    asyncio.run(scenario())


def test_what_nobody_used_yet_is_not_freed_for_others(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine())
        await world.until_state("idle")
        world.residence.load()
        await world.until_state("ready")
        world.residence.unload(drain=False)
        assert world.residence.life.state == "ready"
        await world.end()

    asyncio.run(scenario())


def test_room_that_others_hold_is_waited_for_by_whoever_asks(tmp_path):
    async def scenario() -> None:
        world = World(tmp_path, Engine())
        await world.until_state("idle")
        other = Claim(world.home, "other")
        other.take(60, 100)
        world.residence.load()
        await world.until(lambda: bool(world.residence.life.note))
        assert "held by other 60 MB" in world.residence.life.note
        other.release()
        await asyncio.sleep(0.1)
        assert world.residence.life.state == "idle"
        world.residence.load()
        await world.until_state("ready")
        assert world.residence.life.note == ""
        await world.end()

    asyncio.run(scenario())
