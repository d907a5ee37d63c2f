"""The answer of the fake engine, on its way from its steps to the one who iterates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from worker.engine.fake_core import FakeCore, FakeRequest, Item
from worker.engine.output import EngineOutput


class Mailbox:
    """Items on their way from a step to the one who iterates."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def get(self) -> Item:
        while not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            try:
                await self.waiter
            finally:
                self.waiter = None
        return self.items.popleft()


class FakeStream(AsyncIterator[EngineOutput]):
    """The answer as it comes. Closed or forgotten, it gives the slot back.

    A class rather than an async generator: closing a generator that was never iterated runs none
    of its code.
    """

    request: FakeRequest

    def __init__(self, core: FakeCore) -> None:
        self._core = core
        self._ended = False
        self.mailbox = Mailbox()

    async def __anext__(self) -> EngineOutput:
        if self._ended:
            raise StopAsyncIteration
        item = await self.mailbox.get()
        if isinstance(item, Exception):
            self._ended = True
            raise item
        self._ended = item.finished
        return item

    async def aclose(self) -> None:
        self._ended = True
        self._core.remove(self.request)

    def __del__(self) -> None:
        if hasattr(self, "request"):
            self._core.remove(self.request)
