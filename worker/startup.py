"""An engine brought up and taken down, leaving nothing behind when that is cut short."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from protocol.states import WorkerState
from worker.engine.base import (
    BaseEngine,
    EngineBusy,
    cleanup_startup_cancellation,
    run_blocking_startup_work,
)

logger = logging.getLogger(__name__)

ENGINE_STOP_S = 4.0
"""Twice this and the last words fit into what the supervisor grants beyond the drain."""


class Startup:
    """Owns the engine's coming and going."""

    def __init__(self, engine: BaseEngine, enter: Callable[[WorkerState], None]) -> None:
        self._engine = engine
        self._enter = enter
        self.is_stuck = False
        """The engine could not be stopped: its threads may keep the process from ending."""

    async def start(self) -> None:
        """Load, and generate a token. Cut short, the engine is stopped before this returns."""
        try:
            self._enter(WorkerState.LOADING)
            await run_blocking_startup_work(self._prepare)
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

    def _prepare(self) -> None:
        try:
            self._engine.prepare_for_start()
        except (SystemExit, KeyboardInterrupt) as error:
            raise _wish(error) from error

    async def _warm_up(self) -> None:
        try:
            await self._engine.generate("Hello", max_tokens=1, temperature=0.0)
        except EngineBusy:
            logger.warning("the engine says busy at its first request; it is taken to be ready")
        except NotImplementedError:
            logger.warning("the engine cannot complete a plain prompt; it is taken to be ready")


def _wish(error: BaseException) -> RuntimeError:
    """Raised out of a task as it is, it would end the event loop in the middle of everything."""
    return RuntimeError(f"the engine wants the process to end: {error!r}")
