"""One request on its way through the cluster, and the two ports through which it acts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from gateway.affinity import Beginning
from gateway.lives import Life
from gateway.needs import Needs
from gateway.queue import Ticket
from gateway.registry import WorkerView
from gateway.trial import Trial
from protocol.api_keys import PRIORITIES
from protocol.errors import ClusterError
from protocol.messages import TASKS, Delta, Finished, GatewayMessage, Result, Started, Work
from protocol.values import Usage


class Sent(Enum):
    """What became of a message to a worker."""

    OK = "ok"
    BUSY = "busy"
    """Its pipe is full."""
    LOST = "lost"
    """There is no such peer any more."""


class Placed(Enum):
    """What became of the search for a worker."""

    SENT = "sent"
    WAITS = "waits"
    """There are places, but one of its own workers is worth waiting for."""
    HELD = "held"
    """There are places, but not for it while its client's request is on trial."""
    NOWHERE = "nowhere"
    """There is no place for it, nor for others with its needs."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request wants to be placed."""

    waits: bool | None = None
    """Whether for a model that has to be loaded first; None: as configured."""
    only: str = ""
    """The one worker that may have it; empty: any."""
    parts: tuple[bytes, ...] = ()
    """The pictures that its messages name."""
    trial: Trial | None = None
    """That of all choices of the client's request; None: it is the only one."""


class Transport(Protocol):
    """The way to the workers. Never blocks."""

    def send(self, connection: bytes, message: GatewayMessage, parts: Sequence[bytes] = ()) -> Sent:
        """`parts`: binary frames behind the message."""


class Outlet(Protocol):
    """Where the answer to one request goes. `finished` or `failed` comes exactly once, last."""

    def started(self, worker: WorkerView, message: Started) -> None: ...

    def delta(self, delta: Delta, now: float) -> None: ...

    def result(self, result: Result) -> None: ...

    def finished(self, worker: WorkerView, message: Finished) -> None: ...

    def failed(self, error: ClusterError) -> None: ...


@dataclass(eq=False, slots=True)
class Flight:
    """A request that is queued (`connection` is empty) or at a worker."""

    number: int
    request: Work
    model: str
    outlet: Outlet
    size: int
    deadline: float
    life: Life
    trial: Trial
    parts: tuple[bytes, ...] = field(default=(), repr=False)
    """The pictures that its messages name, for every worker that it is sent to."""
    connection: bytes = b""
    attempt: int = 0
    confirmed: bool = False
    sent_at: float = math.inf
    only: str = ""
    """The one worker that may have it; empty: any."""
    affinity: Beginning | None = None
    """What its prompt begins with; requests of one key go to the same workers."""
    emitted: array[int] = field(default_factory=lambda: array("q"))
    """The tokens of all that came: another worker can go on from there."""
    resumed: int = 0
    """So many of them came before the present attempt."""
    untraced: bool = False
    """Something came that these tokens do not tell of."""
    prompt_tokens: int = 0
    """As its worker counted them."""
    charged: float = 0.0
    """What its key was charged for it so far; see `gateway.fairness`."""
    ticket: Ticket | None = None
    """Its place in the line, kept when it leaves: who comes back stands where it stood."""
    tried: set[str] = field(default_factory=set)
    """Workers that were asked since it last stood in the line."""
    fruitless: int = 0
    """Attempts in a row that ended without a token."""
    engine_failures: int = 0
    missed_since: float = math.inf
    """Since when its worker says that it has nothing in hand."""
    setback: ClusterError | None = None
    """Why it had to leave its last worker."""
    _traced: int = 0
    """The last message that told tokens of it."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def tenant(self) -> str:
        """The key by which it came: whose turn it takes in the line."""
        return self.request.tenant

    @property
    def level(self) -> int:
        """Its class; 0 comes first."""
        return PRIORITIES.index(self.request.priority)

    @property
    def needs(self) -> Needs:
        task = TASKS[type(self.request)]
        return Needs(self.only, self.began, bool(self.parts), task, self.trial.name)

    @property
    def usage(self) -> Usage:
        """What it took so far."""
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=len(self.emitted))

    @property
    def began(self) -> bool:
        """Something came: the client has seen a part of the answer."""
        return bool(self.emitted) or self.untraced

    @property
    def progressed(self) -> bool:
        """Something came from the worker that has it now."""
        return len(self.emitted) > self.resumed or self.untraced

    @property
    def can_be_taken_over(self) -> bool:
        return bool(self.emitted) and not self.untraced

    def take(self, delta: Delta, message: int) -> None:
        """Note what came, in the message of that number, one after 0: the first delta of a step carries the
        ids of all that the step says."""
        if ids := delta.token_ids:
            if len(ids) == 1:  # an array takes one far sooner than a tuple of one
                self.emitted.append(ids[0])
            else:
                self.emitted.extend(ids)
            self._traced = message
        elif self._traced != message:
            self.untraced = True
