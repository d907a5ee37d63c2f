"""Engines as third parties write them: the bare contract, and nothing of ours."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from worker.engine.base import BaseEngine, EngineBusy, GenerationOutput
from worker.engine.fake import FakeEngine
from worker.engine.output import EngineFailed


class BusyAtCall(BaseEngine):
    """Serves one request at a time, five words slowly; says busy when it is called."""

    def __init__(self, model: str, pause_s: float = 0.02) -> None:
        self._model = model
        self._pause_s = pause_s
        self._serving = False

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def is_mllm(self) -> bool:
        return False

    @property
    def tokenizer(self) -> Any:
        return None

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def generate(self, prompt: str, *args: Any, **kwargs: Any) -> GenerationOutput:
        return [item async for item in self.stream_generate(prompt)][-1]

    async def chat(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> GenerationOutput:
        return [item async for item in self.stream_chat(messages)][-1]

    def stream_generate(self, prompt: str, *args: Any, **kwargs: Any) -> AsyncIterator[GenerationOutput]:
        if self._serving:
            raise EngineBusy
        return self._words()

    def stream_chat(
        self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> AsyncIterator[GenerationOutput]:
        return self.stream_generate(messages[-1]["content"])

    async def _words(self) -> AsyncIterator[GenerationOutput]:
        self._serving = True
        try:
            text = ""
            for count, word in enumerate(["one", " two", " three", " four", " five"], 1):
                await asyncio.sleep(self._pause_s)
                text += word
                last = count == 5
                yield GenerationOutput(
                    text, [count], 3, count, "stop" if last else None, new_text=word, finished=last
                )
        finally:
            self._serving = False


class BusyAtFirstItem(BusyAtCall):
    """The same, but it says busy only when it is asked for the first item."""

    async def stream_generate(
        self, prompt: str, *args: Any, **kwargs: Any
    ) -> AsyncIterator[GenerationOutput]:
        if self._serving:
            raise EngineBusy
        async for item in self._words():
            yield item


class AlwaysBusy(BusyAtCall):
    """Has never a place."""

    def stream_generate(self, prompt: str, *args: Any, **kwargs: Any) -> AsyncIterator[GenerationOutput]:
        raise EngineBusy


class BreaksForGood(BusyAtCall):
    """Warms up well, and then fails beyond help."""

    def stream_chat(
        self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> AsyncIterator[GenerationOutput]:
        raise EngineFailed("three steps failed in a row")


class StopsSlowly(BusyAtCall):
    """Needs a moment to end."""

    async def stop(self) -> None:
        await asyncio.sleep(1.0)


class CannotLoad(BusyAtCall):
    """Its weights cannot be read."""

    def prepare_for_start(self) -> None:
        raise OSError("the disk is gone")


class Hostile(BusyAtCall):
    """Does what the prompt says where that is one of these ways, and answers well to all others."""

    WAYS = (
        *("not an item", "tokens that are none", "text that is none"),
        *("cancelled", "exit", "deaf", "nothing at all"),
    )

    def stream_generate(self, prompt: str, *args: Any, **kwargs: Any) -> AsyncIterator[GenerationOutput]:
        if prompt == "exit at the call":
            raise SystemExit(0)
        return self._misbehave(prompt) if prompt in self.WAYS else self._words()

    async def _misbehave(self, prompt: str) -> AsyncIterator[GenerationOutput]:
        first: Any = {
            "not an item": "text",
            "tokens that are none": GenerationOutput("a", ["x"], new_text="a"),  # type: ignore[list-item]
            "text that is none": GenerationOutput("\ud800", [1], new_text="\ud800", finished=False),
        }.get(prompt)
        if first is not None:
            yield first
        if prompt == "cancelled":
            raise asyncio.CancelledError
        if prompt == "exit":
            raise SystemExit(0)
        while prompt == "deaf":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue


class LoadsWhenRepaired(BusyAtCall):
    """Cannot be loaded while a certain file is there; it keeps a child process."""

    def __init__(self, model: str, fault: str, child: str = "", pause_s: float = 0.02) -> None:
        super().__init__(model, pause_s)
        self._fault = Path(fault)
        self._child = child

    def prepare_for_start(self) -> None:
        if self._fault.exists():
            raise RuntimeError(f"the weights are damaged: {self._fault.name}")
        if self._child:
            process = subprocess.Popen(["sleep", "600"])
            Path(self._child).write_text(str(process.pid))


class LoadsAtSecondTry(BusyAtCall):
    """Its first load fails, as where a disk was not there yet."""

    def __init__(self, model: str, mark: str) -> None:
        super().__init__(model)
        self._mark = Path(mark)

    def prepare_for_start(self) -> None:
        if not self._mark.exists():
            self._mark.touch()
            raise OSError("the disk is not there yet")


class Stalls(FakeEngine):
    """Its load comes half way, as with a disk that does not answer any more."""

    def prepare_for_start(self) -> None:
        threading.Event().wait()

    def load_progress(self) -> tuple[float, str]:
        return 0.5, "reading the weights"


class EndsNever(FakeEngine):
    """A thread of it hangs with its steps, so that it cannot be stopped."""

    async def stop(self) -> None:
        await asyncio.to_thread(threading.Event().wait)
