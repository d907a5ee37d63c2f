"""One request that a worker has in hand, from its admission to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.messages import Failed, Finished, Rejected, Work
from worker.answer import Answer
from worker.whole import Whole

End = Finished | Failed | Rejected


class Key(NamedTuple):
    """Names a request in hand: ids are unique to a gateway, and attempts may overlap for a moment."""

    gateway: str
    request_id: str
    attempt: int


@dataclass
class Held:
    """One admitted request."""

    key: Key
    request: Work
    answer: Answer | Whole
    seen_at: float
    """When the engine last gave an item, or the request came."""
    parts: Sequence[bytes] = ()
    """The pictures that its messages name."""
    task: asyncio.Task[End] | None = None
    aborted: bool = False
    insisting: asyncio.TimerHandle | None = None
    verdict: Failed | None = None
    """What to say when it is aborted; None: nothing."""
