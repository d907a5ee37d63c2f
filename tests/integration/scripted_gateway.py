"""The gateway's end of the wire, for tests: says what it is told, remembers what it hears."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from protocol.addresses import Home, endpoint
from protocol.codec import decode, encode
from protocol.folders import socket_folder
from protocol.messages import Delta, Deltas, Finished, Generate, Heartbeat, Hello, Message
from protocol.values import ChatMessage, SamplingParams

PATIENCE_S = 20.0
T = TypeVar("T")


class ScriptedGateway:
    """A ROUTER that is read only while a test waits for something."""

    def __init__(self, home: Home, gateway_id: str = "gw-1") -> None:
        self.id = gateway_id
        self._home = home
        self.open()

    def open(self) -> None:
        """Bind the socket, knowing nothing of what was before."""
        self.heard: list[Any] = []
        self._peer = b""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.RCVHWM, 16)
        self._socket.setsockopt(zmq.LINGER, 0)
        socket_folder(self._home)
        self._socket.bind(endpoint("ipc", self.id, self._home))

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def send(self, message: Message) -> None:
        self.send_raw(encode(message))

    def send_raw(self, frames: list[bytes]) -> None:
        self._socket.send_multipart([self._peer, *frames])

    def hear(self, for_s: float = 0.0) -> None:
        """Read what there is, for at least so long."""
        end = time.monotonic() + for_s
        while self._socket.poll(max(0, int((end - time.monotonic()) * 1000))):
            self._read()

    def wait(self, condition: Callable[[Any], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        """The first message, of all that were heard or will be, for which the condition holds."""
        end = time.monotonic() + patience_s
        seen = 0
        while True:
            while seen < len(self.heard):
                if condition(self.heard[seen]):
                    return self.heard[seen]
                seen += 1
            left = end - time.monotonic()
            assert left > 0, f"waited in vain for {what}; the last were {self.heard[-5:]}"
            if self._socket.poll(int(left * 1000)):
                self._read()

    def wait_for(self, kind: type[T], **fields: Any) -> T:
        """The first message of that kind with these values."""

        def matches(message: Any) -> bool:
            return isinstance(message, kind) and all(getattr(message, k) == v for k, v in fields.items())

        found: T = self.wait(matches, f"{kind.__name__} with {fields}")
        return found

    def wait_ready(self) -> None:
        self.wait_for(Heartbeat, state="ready")

    def forget(self) -> None:
        """What was heard so far counts no more."""
        self.hear()
        self.heard.clear()

    def about(self, request_id: str) -> list[Any]:
        """What was said of a request, deltas one by one."""
        found: list[Any] = []
        for message in self.heard:
            if isinstance(message, Deltas):
                found += [delta for delta in message.deltas if delta.request_id == request_id]
            elif getattr(message, "request_id", None) == request_id:
                found.append(message)
        return found

    def kinds(self, request_id: str) -> list[str]:
        return [type(message).__name__ for message in self.about(request_id)]

    def text(self, request_id: str) -> str:
        return "".join(m.text for m in self.about(request_id) if isinstance(m, Delta))

    def ask(self, request_id: str, content: str, attempt: int = 0, **fields: Any) -> None:
        sampling = SamplingParams(**fields.pop("sampling", {}))
        self.send(
            Generate(
                request_id=request_id,
                attempt=attempt,
                model="fake-model",
                sampling=sampling,
                seed=1,
                messages=(ChatMessage(role="user", content=content),),
                **fields,
            )
        )

    def finished(self, request_id: str) -> Finished:
        return self.wait_for(Finished, request_id=request_id)

    def _read(self) -> None:
        peer, *frames = self._socket.recv_multipart()
        message, _parts = decode(frames)
        if isinstance(message, Hello):
            self._peer = peer
        self.heard.append(message)
