"""A network between a worker and a gateway, with the faults that a test chooses: TCP through a proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Lane:
    """One direction of a connection. What comes while it is closed is kept, not lost."""

    writer: asyncio.StreamWriter
    is_open: bool
    held: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> None:
        self.held += data
        self.flush()

    def flush(self) -> None:
        if self.is_open and self.held and not self.writer.is_closing():
            self.writer.write(bytes(self.held))
            self.held.clear()


@dataclass(eq=False)
class Connection:
    up: Lane
    """To the gateway."""
    down: Lane
    """To the worker."""
    orphaned: bool = False

    def abort(self) -> None:
        for lane in (self.up, self.down):
            lane.writer.transport.abort()


class Proxy:
    """Forwards every connection to the target. Its methods may be called from any thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._connections: set[Connection] = set()
        self._refusing = False
        self._open = {"up": True, "down": True}
        self._loop = asyncio.new_event_loop()
        self._pumps: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._do(self._listen)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.abort()
            for pump in tuple(self._pumps):
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            await asyncio.sleep(0)  # aborted transports close in the next turn

        self._do(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stall(self, *directions: str) -> None:
        """Nothing passes in these directions (`up` to the gateway, `down` to the worker), nobody is told."""
        self._set(dict.fromkeys(directions or ("up", "down"), False))

    def flow(self) -> None:
        """Everything passes, first what was held back."""
        self._set({"up": True, "down": True})

    def cut(self) -> None:
        """Reset every connection, and every new one."""

        async def act() -> None:
            self._refusing = True
            for connection in tuple(self._connections):
                connection.abort()

        self._do(act)

    def mend(self) -> None:
        self._refusing = False

    def orphan(self) -> None:
        """Reset the worker's sides only: the gateway's stay open, with what is held back for it."""

        async def act() -> None:
            self._open = {"up": True, "down": True}  # for those to come
            for connection in tuple(self._connections):
                connection.orphaned = True
                connection.down.writer.transport.abort()

        self._do(act)

    @property
    def connections(self) -> int:
        """Of workers that can reach the gateway."""
        return sum(not connection.orphaned for connection in tuple(self._connections))

    def _set(self, directions: dict[str, bool]) -> None:
        async def act() -> None:
            self._open |= directions
            for connection in self._connections:
                for name, is_open in directions.items():
                    lane: Lane = getattr(connection, name)
                    lane.is_open = is_open
                    lane.flush()

        self._do(act)

    def _do(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(action(), self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _accept(self, worker_reads: asyncio.StreamReader, to_worker: asyncio.StreamWriter) -> None:
        if self._refusing:
            to_worker.transport.abort()
            return
        try:
            gateway_reads, to_gateway = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            to_worker.transport.abort()
            return
        up, down = Lane(to_gateway, self._open["up"]), Lane(to_worker, self._open["down"])
        connection = Connection(up, down)
        self._connections.add(connection)
        for reader, lane in ((worker_reads, up), (gateway_reads, down)):
            pump = self._loop.create_task(self._pump(reader, lane, connection))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, lane: Lane, connection: Connection) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                lane.take(data)
        if connection.orphaned and lane is connection.up:
            return  # the worker's end; the gateway is not told
        self._connections.discard(connection)
        connection.abort()


@contextmanager
def proxies(target: int, count: int) -> Iterator[list[Proxy]]:
    """So many to one port, closed at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Proxy(target))) for _ in range(count)]
