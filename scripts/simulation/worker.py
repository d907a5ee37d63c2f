"""A worker's process: its start, its connections, its heartbeats, and all its accidents."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    GatewayMessage,
    Generate,
    Goodbye,
    Heartbeat,
    Hello,
    WhoAreYou,
)
from protocol.states import WorkerState
from protocol.values import ModelCard
from scripts.simulation.audit import Audit, Record
from scripts.simulation.clock import Clock
from scripts.simulation.link import CLOSES_S, GatewaySide, Link
from scripts.simulation.service import Make, Service

MODEL = "m"
LATENCY_S = 0.0002
UNHEARD_S = 10.0
"""A gateway that says nothing for so long is given up, with its requests."""
HUNG_S = 30.0
"""An engine that stands still for so long ends its process."""


class Worker:
    """Owns one process after another; each begins with nothing."""

    def __init__(
        self,
        name: str,
        make: Make,
        gateways: Sequence[GatewaySide],
        clock: Clock,
        audit: Audit,
        book: Mapping[str, Record],
    ) -> None:
        self.name = name
        self._make, self._gateways = make, gateways
        self._clock, self._audit, self._book = clock, audit, book
        self._rng = random.Random(name)
        self._starts = 0
        self._connections = 0
        self.alive = False

    @property
    def held(self) -> int | None:
        """Requests in hand; None while it does not run."""
        return len(self._service) if self.alive else None

    # --- its process ---

    def start(self, load_s: float | None = None) -> None:
        """It loads its model (for so long), then serves."""
        if self.alive:
            return
        self._starts += 1
        self.alive, self._frozen, self._hung = True, False, False
        self._service = Service(
            self.name, self._make, self._clock, self._audit, self._book, self._exit_if_drained
        )
        self._inbox: list[tuple[Link, GatewayMessage]] = []
        self._links: dict[str, Link] = {}
        self._audit.lives(self.name)
        if load_s == 0:
            self._service.state = WorkerState.READY
        for gateway in self._gateways:
            self.connect(gateway)
        self._later(self._make.load_s if load_s is None else load_s, self._enter, WorkerState.READY)
        self._later(self._rng.random() * self._make.beat_s, self._beat)

    def connect(self, gateway: GatewaySide) -> None:
        """To a gateway that runs; one that starts is connected to again."""
        if not self.alive or not gateway.up:
            return
        self._connections += 1
        connection = f"{self.name}/{gateway.name}/{self._connections}".encode()
        latency_s = LATENCY_S * self._rng.uniform(0.5, 1.5)
        link = Link(self._clock, self, gateway, connection, latency_s, self._clock.now)
        self._links[gateway.name] = link
        gateway.connected(link)
        link.up(self._hello())

    def kill(self) -> None:
        """Without a word; the system closes its connections."""
        if self.alive:
            self._audit.at_fault(self.name)
            self._end()

    def drain(self, timeout_s: float) -> None:
        """Take nothing new, finish, and exit."""
        if self.alive:
            self._enter(WorkerState.DRAINING)
            self._later(timeout_s, self._service.give_up)
            self._exit_if_drained()

    def _exit_if_drained(self) -> None:
        if self.alive and self._service.state == WorkerState.DRAINING and not len(self._service):
            # What the last request says goes first.
            self._later(0.0, self._exit)

    def _exit(self) -> None:
        for link in self._links.values():
            link.up(Goodbye(reason="it was drained"))
        self._audit.drained(self.name, len(self._service))
        self._end()

    def _end(self) -> None:
        self._service.tell_all()
        self._service.engine.stand_still()
        for link in self._links.values():
            link.close()
        self.alive = False
        self._audit.dies(self.name, self._clock.now)

    # --- its accidents ---

    def hang(self) -> None:
        """The engine stands still while the process beats, until that is noticed."""
        if self.alive:
            self._stand_still()
            self._hung = True
            self._later(HUNG_S, self.kill)

    def pause(self, seconds: float) -> None:
        """The whole process stands still."""
        if self.alive:
            self._stand_still()
            self._frozen = True
            for link in self._links.values():
                self._later(CLOSES_S, self._close_if_frozen, link)
            self._later(seconds, self._resume)

    def _stand_still(self) -> None:
        self._audit.at_fault(self.name)
        self._service.tell_all()
        self._service.engine.stand_still()

    def _close_if_frozen(self, link: Link) -> None:
        if self._frozen:
            link.close()

    def _resume(self) -> None:
        self._frozen = False
        if not self._hung:
            self._service.engine.go_on()
        for link in list(self._links.values()):
            if not link.open:
                self.lost(link)
                self.connect(link.gateway)
        inbox, self._inbox = self._inbox, []
        for link, message in inbox:
            self.receive(link, message)
        self._beat_now()

    def part(self, gateway: GatewaySide, seconds: float) -> None:
        """The network between it and one gateway is cut for so long."""
        if self.alive and (link := self._links.get(gateway.name)) is not None:
            self._audit.at_fault(self.name)
            self._service.tell_all()
            link.blocked = True
            self._later(CLOSES_S, self._break, link)
            self._later(max(seconds, CLOSES_S) + 0.1, self.connect, gateway)

    def _break(self, link: Link) -> None:
        link.blocked = False
        link.close()
        self.lost(link)

    def lost(self, link: Link) -> None:
        """That connection is gone: what was wanted on it is dropped."""
        if self.alive and self._links.get(link.gateway.name) is link:
            link.open = False
            self._service.forget(link.gateway)

    def fall_sick(self, seconds: float) -> None:
        """Its engine fails each request."""
        if self.alive:
            self._audit.at_fault(self.name)
            self._service.sick = True
            self._later(seconds, self._recover)

    def _recover(self) -> None:
        self._service.sick = False

    # --- what it says ---

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self.name,
            incarnation=f"{self._starts:06d}",
            node=self.name,
            pid=1,
            card=ModelCard(name=MODEL, engine="fake", can_resume=True),
            capacity=self._service.capacity,
            state=self._service.state,
            gateways=len(self._gateways),
        )

    def _enter(self, state: WorkerState) -> None:
        if self._service.state != WorkerState.DRAINING:
            self._service.state = state
            self._beat_now()

    def _beat(self) -> None:
        if not self._frozen:
            self._beat_now()
            self._give_up_silent_gateways()
        self._later(self._make.beat_s * self._rng.uniform(0.9, 1.1), self._beat)

    def _beat_now(self) -> None:
        beat = Heartbeat(
            state=self._service.state,
            load=self._service.load(),
            prefill_tokens_per_s=self._make.speed.prefill,
        )
        for link in self._links.values():
            link.up(beat)

    def _give_up_silent_gateways(self) -> None:
        for link in self._links.values():
            if link.open and self._clock.now - link.heard_at > UNHEARD_S:
                link.heard_at = self._clock.now
                self._service.give_up(link.gateway)

    # --- what it is told ---

    def receive(self, link: Link, message: GatewayMessage) -> None:
        if not self.alive or not link.open or self._links.get(link.gateway.name) is not link:
            return
        if self._frozen:
            self._inbox.append((link, message))
            return
        link.heard_at = self._clock.now
        match message:
            case Generate():
                self._service.generate(link, message)
            case Abort():
                if self._service.abort(link.gateway, message.request_id):
                    self._beat_now()  # a place is free
            case WhoAreYou():
                link.up(self._hello())
            case _:
                pass

    def _later(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        """Unless the process ends before."""
        self._clock.at(self._clock.now + seconds, self._if_alive, self._starts, action, arguments)

    def _if_alive(self, start: int, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self.alive and start == self._starts:
            action(*arguments)
