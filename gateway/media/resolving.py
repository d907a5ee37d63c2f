"""Names to addresses, by the system's own resolver, on threads that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable

from gateway.media.turns import Turns

Resolve = Callable[[str, int, str], Awaitable[list[str]]]
"""The addresses of a host, with its port, for an asker; none where it has none."""

_THREADS = 8
"""Look-ups at the same time. A name server that does not answer holds a thread for half a minute."""


class Resolver:
    """A `Resolve`. On the event loop."""

    def __init__(self) -> None:
        self._turns = Turns(_THREADS)

    async def __call__(self, host: str, port: int, asker: str) -> list[str]:
        await self._turns.take(asker)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str]) -> None:
            self._turns.give_back(asker)  # only now: who gave up waiting has not ended the look-up
            if not answer.done():
                answer.set_result(found)

        def look_up() -> None:
            found = _addresses(host, port)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=look_up, name="look-up", daemon=True).start()
        return await answer


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for _family, _type, _protocol, _name, address in found))
