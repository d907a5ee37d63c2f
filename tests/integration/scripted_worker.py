"""A worker on the wire that does just what a test says: a DEALER on a thread-free poll loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import zmq

from protocol import codec
from protocol.messages import (
    PROTOCOL_VERSION,
    Accepted,
    AnyMessage,
    Delta,
    Deltas,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Hello,
    Message,
    Ping,
    Rejected,
    Started,
    Unknown,
    Welcome,
)
from protocol.values import Capacity, Load, ModelCard, Usage

PATIENCE_S = 20.0
M = TypeVar("M", bound=Message)


class ScriptedWorker:
    """One peer of a gateway. Every wait is for a message, and gives up after `PATIENCE_S`."""

    def __init__(
        self,
        endpoint: str,
        worker_id: str,
        *,
        model: str = "m",
        options: Mapping[int, int | bytes] | None = None,
        **hello: Any,
    ) -> None:
        """`options` are of the socket."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        for option, value in (options or {}).items():
            self._socket.setsockopt(option, value)
        self._socket.connect(endpoint)
        self._inbox: list[AnyMessage | Unknown] = []
        self.card = ModelCard(name=model, **{"engine": "fake", "fingerprint": "f1", **hello.pop("card", {})})
        self.capacity = Capacity(max_num_seqs=hello.pop("slots", 2), max_waiting=0)
        self.worker_id = worker_id
        self.hello_fields = {"protocol": PROTOCOL_VERSION, "incarnation": "1", "state": "ready", **hello}

    def close(self) -> None:
        self._context.destroy(linger=0)

    def send(self, message: Message) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLOUT)
        assert poller.poll(int(PATIENCE_S * 1000)), "no gateway to send to"
        self._socket.send_multipart(codec.encode(message))

    def send_bytes(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def hello(self) -> Welcome:
        self.send(
            Hello(
                worker_id=self.worker_id,
                node="local",
                pid=1,
                card=self.card,
                capacity=self.capacity,
                **self.hello_fields,
            )
        )
        return self.wait(Welcome)

    def heartbeat(self, state: str = "ready", **load: int) -> None:
        self.send(Heartbeat(state=state, load=Load(**load)))

    def wait(self, kind: type[M], accept: Callable[[M], bool] = lambda _: True) -> M:
        """The first message of that kind, read before or yet to come; it is taken out."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for message in self._inbox:
                if isinstance(message, kind) and accept(message):
                    self._inbox.remove(message)
                    return message
            assert self._read(deadline - time.monotonic()), f"waited in vain for {kind.__name__}"

    def has(self, kind: type[Message]) -> bool:
        """Whether such a message came before the answer to what is sent now: see `settle`."""
        return any(isinstance(message, kind) for message in self._inbox)

    def look(self) -> None:
        """Read what has come."""
        while self._read(0.0):
            pass

    def settle(self) -> None:
        """Read until two pings have come: all that was said before is in the inbox then."""
        for _ in range(2):
            self.wait(Ping)

    def _read(self, patience_s: float) -> bool:
        if not self._socket.poll(max(0, int(patience_s * 1000))):
            return False
        message, _parts = codec.decode(self._socket.recv_multipart())
        if isinstance(message, Ping):
            self._inbox = [m for m in self._inbox if not isinstance(m, Ping)]
        self._inbox.append(message)
        return True

    # --- words about one request ---

    def accept(self, request: Generate) -> None:
        self.send(Accepted(request_id=request.request_id, attempt=request.attempt, load=Load(running=1)))

    def reject(self, request: Generate, **load: int) -> None:
        self.send(
            Rejected(
                request_id=request.request_id,
                attempt=request.attempt,
                load=Load(**load),
                reason="engine_busy",
            )
        )

    def start(self, request: Generate) -> None:
        self.accept(request)
        self.send(Started(request_id=request.request_id, attempt=request.attempt, prompt_tokens=3))

    def say(self, request: Generate, *texts: str) -> None:
        for text in texts:
            delta = Delta(request_id=request.request_id, attempt=request.attempt, text=text, token_ids=(1,))
            self.send(Deltas(deltas=(delta,)))

    def finish(self, request: Generate, completion_tokens: int = 2) -> None:
        self.send(
            Finished(
                request_id=request.request_id,
                attempt=request.attempt,
                finish_reason="stop",
                usage=Usage(prompt_tokens=3, completion_tokens=completion_tokens),
                load=Load(),
            )
        )

    def fail(self, request: Generate, code: str, message: str = "it broke", **fields: Any) -> None:
        self.send(
            Failed(
                request_id=request.request_id,
                attempt=request.attempt,
                code=code,
                message=message,
                load=Load(),
                **fields,
            )
        )

    def serve(self, *texts: str) -> Generate:
        """Answer the next request."""
        request = self.wait(Generate)
        self.start(request)
        self.say(request, *texts)
        self.finish(request, len(texts))
        return request
