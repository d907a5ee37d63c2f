"""Questions to workers that are no generation: any worker of the model will do, a busy one too. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.catalog import Catalog
from gateway.flight import Sent, Transport
from gateway.orders import Orders
from gateway.registry import Registry, WorkerView
from protocol.errors import ClusterError, ErrorCode, worker_code
from protocol.messages import Failed, Result, Tokenize

Told = Callable[[Any], None]
Refused = Callable[[ClusterError], None]


@dataclass(eq=False, slots=True)
class _Question:
    message: Tokenize
    model: str
    told: Told
    refused: Refused
    connection: bytes = b""
    tried: set[str] = field(default_factory=set)


class Questions:
    """Owns what was asked and is not answered. Called from the event loop only."""

    def __init__(self, registry: Registry, catalog: Catalog, transport: Transport, orders: Orders) -> None:
        self._registry = registry
        self._catalog = catalog
        self._transport = transport
        self._orders = orders
        self._open: dict[str, _Question] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, message: Tokenize, model: str, now: float, told: Told, refused: Refused) -> None:
        """Raises `ClusterError` where nobody can be asked; else `told` or `refused` comes, once."""
        question = _Question(message, model, told, refused)
        if not self._send(question):
            raise self._nobody(model, now)

    def forget(self, request_id: str) -> None:
        """Nobody waits for that answer any more."""
        self._open.pop(request_id, None)

    def answer(self, connection: bytes, message: Result | Failed) -> None:
        question = self._open.get(message.request_id)
        if question is None or question.connection != connection:
            return
        del self._open[message.request_id]
        if isinstance(message, Result):
            question.told(message.value)
        else:
            code = worker_code(message.code)
            question.refused(ClusterError(code, message.message, param=message.param, reason=message.reason))

    def lost(self, connection: bytes, now: float) -> None:
        """That worker is gone: others are asked what it was asked."""
        for question in [q for q in self._open.values() if q.connection == connection]:
            del self._open[question.message.request_id]
            if not self._send(question):
                question.refused(self._nobody(question.model, now))

    def _send(self, question: _Question) -> bool:
        views = [view for view in self._registry.views() if view.is_ready and view.serves(question.model)]
        for view in sorted(views, key=_in_hand):
            if view.worker_id in question.tried:
                continue
            question.tried.add(view.worker_id)
            if self._transport.send(view.connection, question.message) is Sent.OK:
                question.connection = view.connection
                self._open[question.message.request_id] = question
                return True
        return False

    def _nobody(self, model: str, now: float) -> ClusterError:
        if self._catalog.is_hopeless(model, now):
            message = f"no worker for {model!r} runs; its operator sees why with: clusterctl status"
            return ClusterError(ErrorCode.NO_WORKER_AVAILABLE, message)
        return self._orders.loading(model, now)


def _in_hand(view: WorkerView) -> int:
    return view.taken
