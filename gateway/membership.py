"""Who belongs to the fleet: hello, heartbeat, goodbye, silence. Pure but for the transport.

Requests are passed on to the dispatcher, which also learns when a worker comes or goes.
"""

from __future__ import annotations

import logging
import math

from gateway.catalog import Catalog
from gateway.dispatch import Dispatcher
from gateway.flight import Sent, Transport
from gateway.guard import Guard
from gateway.questions import Questions
from gateway.registry import Registry, WorkerView
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    AnyMessage,
    Deltas,
    Failed,
    Finished,
    Goodbye,
    Heartbeat,
    Hello,
    Ping,
    Rejected,
    Result,
    Started,
    Unknown,
    Welcome,
    WhoAreYou,
)
from protocol.wire_keys import AllowList

FORGET_LOST_S = 300.0
"""A lost worker that the configuration does not name is remembered so long: it may be restarting."""
MOST_WORKERS = 1024
"""With so many known, only those of the configuration are still taken."""

logger = logging.getLogger(__name__)


class Membership:
    """Takes every message that comes from the workers' side. Called from the event loop only."""

    def __init__(
        self,
        gateway_id: str,
        registry: Registry,
        catalog: Catalog,
        dispatcher: Dispatcher,
        transport: Transport,
    ) -> None:
        self._gateway_id = gateway_id
        self._registry = registry
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._transport = transport
        self.guard = Guard()
        self.questions = Questions(registry, catalog, transport, dispatcher.orders)
        self.ignored = 0
        """Messages of kinds that this version does not know, or that gateways do not take."""

    def receive(self, connection: bytes, message: AnyMessage | Unknown, now: float, key: str = "") -> None:
        """`key` is the one with which the sender came; empty for a peer of this machine."""
        if isinstance(message, Hello):
            self._hello(connection, message, now, key)
            return
        worker = self._registry.at(connection)
        if worker is None:
            if self.guard.knows(key) and self._registry.strangers.should_ask(connection, now):
                self._transport.send(connection, WhoAreYou(gateway_id=self._gateway_id))
        elif worker.key != key:
            # ZeroMQ lets a peer choose its connection's name, that of one which has just closed, too.
            self.lost(connection, now, "somebody else speaks on its connection")
        else:
            self._registry.heard(connection, now)
            self._heard(worker, message, now)

    def _heard(self, worker: WorkerView, message: AnyMessage | Unknown, now: float) -> None:
        connection = worker.connection
        match message:
            case Deltas():
                self._dispatcher.deltas(connection, message, now)
            case Heartbeat():
                self._registry.heartbeat(connection, message, now)
                self._dispatcher.pump(now)
            case Result():
                self.questions.answer(connection, message)
                self._dispatcher.flights.result(connection, message)
            case Accepted() | Rejected() | Started() | Finished() | Failed():
                self._dispatcher.answer(worker, message, now)
                if isinstance(message, Failed):
                    self.questions.answer(connection, message)
            case Goodbye():
                logger.info("worker %s leaves: %s", worker.worker_id, message.reason)
                self._leave(connection, now, died=False, why=message.reason, forget=True)
            case _:
                self.ignored += 1
                logger.debug("ignored a message of kind %s", type(message).__name__)

    def _hello(self, connection: bytes, hello: Hello, now: float, key: str) -> None:
        refused = self.guard.refusal(key, hello.worker_id)
        if not refused:
            self._look_for_newer(hello, now)
            refused = self._registry.refusal(connection, hello) or self._no_room(hello)
        welcome = Welcome(gateway_id=self._gateway_id, protocol=PROTOCOL_VERSION, refused=refused)
        if refused:
            self._refuse(connection, hello.worker_id, refused, now)
            self._transport.send(connection, welcome)
            return
        older = self._registry.other_connection(connection, hello.worker_id)
        if older:
            self._fence(older, connection, hello, now)
        if self._registry.at(connection) is None:
            logger.info(
                "worker %s (%s, pid %d) serves %s", hello.worker_id, hello.node, hello.pid, hello.card.name
            )
        self._registry.hello(connection, hello, now, key)
        self._transport.send(connection, welcome)
        self._dispatcher.pump(now)

    def _look_for_newer(self, hello: Hello, now: float) -> None:
        """A process that looks older, because the clock was set back, must not be refused for a dead one."""
        known = self._registry.named(hello.worker_id)
        if known is not None and known.connection and known.incarnation > hello.incarnation:
            self._ping(known.connection, now)

    def _no_room(self, hello: Hello) -> str:
        """Why not one worker more is taken; empty when it is. Those that were lost make room."""
        configured = self._catalog.configured_ids()
        if len(self._registry) < MOST_WORKERS or hello.worker_id in configured:
            return ""
        self._registry.forget(math.inf, configured)
        if len(self._registry) < MOST_WORKERS or any(
            view.worker_id == hello.worker_id for view in self._registry.views()
        ):
            return ""
        return (
            f"worker {hello.worker_id!r} is one too many: this gateway knows {len(self._registry)};"
            " name it in the configuration, or stop others"
        )

    def _refuse(self, connection: bytes, worker_id: str, why: str, now: float) -> None:
        """One that was taken when less was known of it leaves."""
        before = self._registry.at(connection)
        if before is not None and before.worker_id == worker_id:
            self._leave(connection, now, died=True, why=why)
        if self._registry.strangers.refuse(connection, now):
            logger.warning("refused: %s", why)
        self._registry.strangers.refused(worker_id, why)

    def _fence(self, older: bytes, newer: bytes, hello: Hello, now: float) -> None:
        """One worker id, two connections: the newest process holds, and its newest connection.

        What was under way on a connection of the same process may have lost messages, so it is
        ended there and begun anew.
        """
        view = self._registry.at(older)
        if view is not None and view.incarnation == hello.incarnation:
            self._abort_all(older, by=newer)
        self._registry.strangers.refuse(older, now)
        same = view is not None and view.incarnation == hello.incarnation
        self._leave(older, now, died=not same, why="it connected again" if same else "a newer process came")

    def allow(self, allowed: AllowList, now: float) -> None:
        """These, and only these, may come over tcp from now on; who may not any more is left."""
        self.guard.allowed = allowed
        for view in list(self._registry.views()):
            if not view.connection or not (why := self.guard.refusal(view.key, view.worker_id)):
                continue
            welcome = Welcome(gateway_id=self._gateway_id, protocol=PROTOCOL_VERSION, refused=why)
            self._transport.send(view.connection, welcome)
            self._registry.strangers.refused(view.worker_id, why)
            self._drop(view.connection, now, died=False, why="its key was revoked")

    def lost(self, connection: bytes, now: float, why: str) -> None:
        """The peer is gone. Idempotent."""
        self._drop(connection, now, died=True, why=why)

    def malformed(self, connection: bytes, now: float) -> None:
        """The peer said what cannot be read: what it tells of its requests has a hole now.

        They begin anew, and so does it: with its next word it is asked who it is.
        """
        if self._dispatcher.flights.at(connection):
            self._drop(connection, now, died=False, why="it sent bytes that are no message")

    def _drop(self, connection: bytes, now: float, *, died: bool, why: str) -> None:
        worker = self._registry.at(connection)
        if worker is not None:
            logger.warning("worker %s is lost: %s", worker.worker_id, why)
            # It may be there all the same, stopped or too busy: it must not go on for nobody.
            self._abort_all(connection, by=connection)
            self._leave(connection, now, died=died, why=why)

    def _leave_silent(self, now: float) -> None:
        """All together: what one of them had must not go to another."""
        why = "it is silent"
        silent = self._registry.silent(now)
        for connection in silent:
            self._abort_all(connection, by=connection)
        for view in [self._registry.leave(connection, why, forget=False) for connection in silent]:
            if view is not None:
                logger.warning("worker %s is lost: %s", view.worker_id, why)
                self._left(view, now, died=True, why=why)

    def _abort_all(self, connection: bytes, *, by: bytes) -> None:
        """Have the worker end what it was sent on one connection, by a word on one of its connections."""
        for flight in self._dispatcher.flights.at(connection):
            self._transport.send(by, Abort(request_id=flight.request_id))

    def _leave(self, connection: bytes, now: float, *, died: bool, why: str, forget: bool = False) -> None:
        view = self._registry.leave(connection, why if died else "", forget=forget)
        if view is not None:
            self._left(view, now, died=died, why=why)

    def _left(self, view: WorkerView, now: float, *, died: bool, why: str) -> None:
        self._catalog.left(view.worker_id, now)
        self._dispatcher.lost(view, now, died=died, why=why)
        self.questions.lost(view.connection, now)

    def ping(self, now: float) -> None:
        """Say that somebody reads, and find out who is gone: only a send tells."""
        for connection in self._registry.connections():
            self._ping(connection, now)

    def _ping(self, connection: bytes, now: float) -> None:
        if self._transport.send(connection, Ping(gateway_id=self._gateway_id)) is Sent.LOST:
            self.lost(connection, now, "its connection closed")

    @property
    def is_waited_for(self) -> bool:
        """Whether a request stands in a line."""
        return len(self._dispatcher.waiting) > 0

    def tick(self, now: float) -> None:
        self._leave_silent(now)
        self._registry.forget(now - FORGET_LOST_S, self._catalog.configured_ids())
        self._dispatcher.breakers.forget([view.worker_id for view in self._registry.views()])
        self._dispatcher.tick(now)
