"""Why a gateway is not reached over the network: met by a TCP connection of the worker's own, and logged.

From inside the job: what a person meets in a terminal of the same machine proves nothing.
"""

from __future__ import annotations

import asyncio
import logging

from protocol.addresses import is_tcp
from protocol.reachability import OPEN, Reach, met_with
from worker.dialing import Dial

logger = logging.getLogger(__name__)

AFTER_S = 10.0
"""Without a connection for so long, it is asked why."""
AGAIN_S = 30.0
_CONNECT_S = 5.0


class ReachWatch:
    """Looks after one gateway. On the event loop; told at each tick whether there is a connection."""

    def __init__(self, dial: Dial, after_s: float = AFTER_S) -> None:
        self._dial = dial
        self._after_s = after_s
        self._due_at: float | None = None
        self._said = ""
        self._task: asyncio.Task[None] | None = None

    def look(self, *, connected: bool, now: float) -> None:
        """Ask why, when it is time to."""
        if connected:
            self._due_at, self._said = None, ""
        elif self._due_at is None:
            self._due_at = now + self._after_s
        elif now >= self._due_at and is_tcp(self._dial.endpoint):
            self._due_at = now + AGAIN_S
            self._task = asyncio.get_running_loop().create_task(self._ask())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _ask(self) -> None:
        reach = await meet(self._dial)
        if reach.met != self._said and self._due_at is not None:
            self._said = reach.met
            logger.warning("%s", reach.line)


async def meet(dial: Dial) -> Reach:
    """Connect once, and let go at once."""
    host, _, port = dial.endpoint.removeprefix("tcp://").rpartition(":")
    met, number = OPEN, None
    try:
        async with asyncio.timeout(_CONNECT_S):
            _reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except OSError as error:
        met, number = met_with(error)
    return Reach(dial.gateway, dial.endpoint, met, number)
