"""A model on its engine thread, from load to unload, with what steps its sequences and guards its memory."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from worker.engine.guard import Guard
from worker.engine.loading import LoadedModel, Loader
from worker.engine.memory import Memory
from worker.engine.output import EngineFacts
from worker.engine.sequence import Stepper
from worker.engine.thread import EngineThread


@dataclass(frozen=True)
class Loaded:
    """What is there once a model is loaded. The stepper is the engine thread's."""

    model: LoadedModel
    stepper: Stepper
    guard: Guard
    thread: EngineThread


class ModelHost:
    """Owns the thread and the model. Loads again after an unload, from the files as they are then."""

    def __init__(
        self,
        make_loader: Callable[[], Loader],
        make_stepper: Callable[[LoadedModel], Stepper],
        make_memory: Callable[[], Memory],
        on_fault: Callable[[Exception], None],
    ) -> None:
        """`make_stepper` and `make_memory` are called on the thread, once MLX is there."""
        self._make_loader = make_loader
        self._make_stepper = make_stepper
        self._make_memory = make_memory
        self._on_fault = on_fault
        self._loader = make_loader()
        self._thread: EngineThread | None = None
        self._inspected = EngineFacts()
        self.loaded: Loaded | None = None

    @property
    def facts(self) -> EngineFacts:
        return self._inspected if self.loaded is None else self.loaded.model.facts

    @property
    def progress(self) -> tuple[float, str]:
        return self._loader.progress if self.loaded is None else (1.0, "loaded")

    def request_stop(self) -> None:
        self._loader.request_stop()

    def inspect(self) -> int:
        """Look at the files only; bytes of the weights. Raises `ValueError`."""
        size, self._inspected = self._loader.inspect()
        return size

    def load(self) -> Loaded:
        """Load piece by piece, if it is not loaded. Blocking.

        Raises `StopRequested`, `ValueError` and `EmbeddedModelError`.
        """
        if self.loaded is not None:
            return self.loaded
        if self._thread is None:
            self._thread = EngineThread("engine", self._on_fault)
        thread, pieces = self._thread, self._loader.pieces()

        def one_more() -> bool:
            return any(True for _piece in pieces)  # takes the next piece only

        while thread.call(one_more):
            pass
        self.loaded = thread.call(lambda: self._take(thread))
        return self.loaded

    def unload(self) -> None:
        """Free everything, and end the thread. Blocking; idempotent."""
        self._loader = self._make_loader()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(lambda: self._drop(thread))
            thread.end()

    def _take(self, thread: EngineThread) -> Loaded:
        model = self._loader.result
        if model is None:
            raise RuntimeError("the model is not loaded")
        stepper = self._make_stepper(model)
        guard = Guard(self._make_memory(), stepper.clear_prefixes, time.monotonic)
        return Loaded(model, stepper, guard, thread)

    def _drop(self, thread: EngineThread) -> None:
        thread.drive(None)
        if self.loaded is not None:
            self.loaded.stepper.close()
        self.loaded = None
        if mx := sys.modules.get("mlx.core"):
            gc.collect()
            mx.clear_cache()  # it keeps freed arrays for others to come
