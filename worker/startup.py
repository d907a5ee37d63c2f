"""An engine brought up and taken down, leaving nothing behind when that is cut short."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from protocol.messages import Embed, Score
from protocol.states import WorkerState
from protocol.values import Task
from worker.engine.base import (
    BaseEngine,
    EngineBusy,
    cleanup_startup_cancellation,
    run_blocking_startup_work,
)
from worker.engine.output import FleetEngine, ModelUnavailable
from worker.stall import StallWatch
from worker.whole import computed

logger = logging.getLogger(__name__)

ENGINE_STOP_S = 4.0
"""Twice this and the last words fit into what the supervisor grants beyond the drain."""
_LOOK_S = 0.25
"""Between two looks at how far a load is."""


class Startup:
    """Owns the engine's coming and going. A load that stands still for `stall_s` is given up."""

    def __init__(self, engine: BaseEngine, enter: Callable[[WorkerState], None], stall_s: float) -> None:
        self._engine = engine
        self._enter = enter
        self._stall_s = stall_s
        self.is_stuck = False
        """The engine could not be stopped: its threads may keep the process from ending."""

    async def start(self) -> None:
        """Load, and generate a token. Cut short, the engine is stopped before this returns."""
        try:
            self._enter(WorkerState.LOADING)
            await self._load()
            await self._engine.start()
            self._enter(WorkerState.WARMING)
            await self._warm_up()
        except (SystemExit, KeyboardInterrupt) as error:
            await cleanup_startup_cancellation(self.stop)
            raise _wish(error) from error
        except BaseException:
            await cleanup_startup_cancellation(self.stop)
            raise

    async def stop(self) -> None:
        """Stop the engine, and never raise: the process ends anyway."""
        try:
            async with asyncio.timeout(ENGINE_STOP_S):
                await self._engine.stop()
        except TimeoutError:
            logger.error("the engine did not stop within %s s", ENGINE_STOP_S)
            self.is_stuck = True
        except BaseException:
            logger.exception("the engine could not be stopped")
            self.is_stuck = True

    async def _load(self) -> None:
        """Raises `ModelUnavailable` when it stands still, which only our own engines can tell."""
        loop = asyncio.get_running_loop()
        watch = StallWatch(self._stall_s, loop.time())
        loading = asyncio.ensure_future(run_blocking_startup_work(self._prepare))
        try:
            while not loading.done():
                await asyncio.wait({loading}, timeout=_LOOK_S)
                if loading.done() or not isinstance(self._engine, FleetEngine):
                    continue
                if why := watch.look(self._engine.load_progress(), loop.time()):
                    self.is_stuck = True  # its thread cannot be ended
                    raise ModelUnavailable(why)
            loading.result()
        except asyncio.CancelledError:
            loading.cancel()
            while not loading.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({loading})
            raise

    def _prepare(self) -> None:
        try:
            self._engine.prepare_for_start()
        except (SystemExit, KeyboardInterrupt) as error:
            raise _wish(error) from error

    async def _warm_up(self) -> None:
        """Raises `ModelUnavailable` when an engine of ours hangs; a foreign one may load its model now."""
        scope = asyncio.timeout(self._stall_s if isinstance(self._engine, FleetEngine) else None)
        try:
            async with scope:
                await self._first_work()
        except TimeoutError as error:
            if not scope.expired():
                raise
            why = f"its first token did not come within {self._stall_s:g} s; or allow more: load_stall_s"
            raise ModelUnavailable(why) from error
        except EngineBusy:
            logger.warning("the engine says busy at its first request; it is taken to be ready")
        except NotImplementedError:
            logger.warning("the engine cannot complete a plain prompt; it is taken to be ready")

    async def _first_work(self) -> None:
        """A token, or whatever the model is for."""
        engine = self._engine
        task = engine.facts().task if isinstance(engine, FleetEngine) else Task.GENERATE
        if task is Task.EMBED:
            await computed(engine, Embed(request_id="", inputs=("Hello",)), "", lambda _tokens: None)
        elif task is Task.RERANK:
            pair = Score(request_id="", attempt=0, queries=("Hello",), texts=("Hello",))
            await computed(engine, pair, "", lambda _tokens: None)
        else:
            await engine.generate("Hello", max_tokens=1, temperature=0.0)


def _wish(error: BaseException) -> RuntimeError:
    """Raised out of a task as it is, it would end the event loop in the middle of everything."""
    return RuntimeError(f"the engine wants the process to end: {error!r}")


def understood(error: BaseException) -> BaseException:
    """What made a start fail; where a requirement is missing, with the cure, as no other start would help."""
    if isinstance(error, ModuleNotFoundError):
        return ValueError(f"{error}; run: scripts/install, or install what the engine needs")
    return error
