import asyncio
import threading
import time

import pytest

from protocol.states import WorkerState
from tests.integration.foreign_engines import BusyAtCall
from worker.engine.base import EngineBusy
from worker.engine.fake import FakeEngine
from worker.engine.output import ModelUnavailable, StopRequested
from worker.startup import Startup, understood


class Watched(FakeEngine):
    """A fake engine that counts how often it was stopped, and warms up as it is told."""

    def __init__(self, warm_up=None, load_s=0.0):
        super().__init__("m", load_s=load_s)
        self.stops = 0
        self._warm_up = warm_up
        self.begun = threading.Event()

    def prepare_for_start(self):
        self.begun.set()
        super().prepare_for_start()

    async def stop(self):
        self.stops += 1
        await super().stop()

    async def generate(self, *args, **kwargs):
        if self._warm_up is not None:
            raise self._warm_up
        return await super().generate(*args, **kwargs)


def start(engine, stall_s=120.0):
    states: list[WorkerState] = []
    asyncio.run(Startup(engine, states.append, stall_s).start())
    return states


def test_a_start_loads_and_generates_a_token():
    engine = Watched()
    assert start(engine) == [WorkerState.LOADING, WorkerState.WARMING]
    assert engine.stops == 0


@pytest.mark.parametrize("error", [EngineBusy(), NotImplementedError()])
def test_an_engine_that_refuses_the_first_token_in_these_ways_is_served(error):
    assert start(Watched(error)) == [WorkerState.LOADING, WorkerState.WARMING]


def test_an_engine_of_ours_that_hangs_at_its_first_token_is_given_up():
    class Hanging(Watched):
        async def generate(self, *args, **kwargs):
            await asyncio.Event().wait()

    engine = Hanging()
    with pytest.raises(ModelUnavailable, match=r"first token did not come within 0\.05 s"):
        start(engine, stall_s=0.05)
    assert engine.stops == 1


def test_a_limit_of_the_engines_own_is_its_failure():
    with pytest.raises(TimeoutError, match="its own"):
        start(Watched(TimeoutError("its own")))


def test_an_engine_that_fails_at_its_first_token_is_stopped():
    engine = Watched(OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        start(engine)
    assert engine.stops == 1


def test_cancelled_while_loading_the_engine_is_stopped_before_it_returns():
    engine = Watched(load_s=600.0)

    async def case():
        task = asyncio.create_task(Startup(engine, lambda _state: None, 120.0).start())
        await asyncio.to_thread(engine.begun.wait)
        engine.request_stop()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(case())
    assert engine.stops == 1
    assert engine.load_progress()[0] < 0.1


def test_a_stop_request_alone_ends_the_loading():
    engine = Watched(load_s=600.0)
    engine.request_stop()
    with pytest.raises(StopRequested):
        start(engine)
    assert engine.stops == 1


def test_an_engine_that_cannot_be_stopped_is_stuck():
    class Unstoppable(FakeEngine):
        async def stop(self):
            raise OSError("no")

    startup = Startup(Unstoppable("m"), lambda _state: None, 120.0)
    asyncio.run(startup.stop())
    assert startup.is_stuck


def test_an_engine_that_wants_the_process_to_end_is_a_fault_like_others():
    class Exits(Watched):
        def prepare_for_start(self):
            raise SystemExit(0)

    engine = Exits()
    with pytest.raises(RuntimeError, match="SystemExit"):
        start(engine)
    assert engine.stops == 1


class Stalls(Watched):
    """Stands still in the middle of its load, until the test is over."""

    def __init__(self):
        super().__init__()
        self.over = threading.Event()

    def prepare_for_start(self):
        self.over.wait()

    def load_progress(self):
        return 0.5, "reading the weights"


def test_a_load_that_stands_still_is_given_up_in_words():
    engine = Stalls()

    async def case():
        startup = Startup(engine, lambda _state: None, 0.01)
        with pytest.raises(ModelUnavailable, match=r"no progress for 0.01 s \(50% done, reading"):
            await startup.start()
        assert startup.is_stuck
        assert engine.stops == 1
        engine.over.set()

    asyncio.run(case())


def test_a_load_of_an_engine_that_tells_no_progress_is_waited_for():
    class Foreign(BusyAtCall):
        def prepare_for_start(self):
            time.sleep(0.6)

    start(Foreign("m"), stall_s=0.01)


def test_a_requirement_that_is_missing_is_told_with_its_cure():
    """After an update of the files alone, the environment lacks what they need."""
    told = understood(ModuleNotFoundError("No module named 'x'"))
    assert isinstance(told, ValueError)
    assert str(told) == "No module named 'x'; run: scripts/install, or install what the engine needs"
    fault = OSError("the disk is gone")
    assert understood(fault) is fault
