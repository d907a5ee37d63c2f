"""CURVE on a gateway's socket: libzmq asks here, before a connection is made, whether its key is taken.

The question comes over inproc (ZeroMQ RFC 27). A thin shell: `gateway.guard` decides.
"""

from __future__ import annotations

import asyncio
import logging

import zmq
from zmq.utils import z85

from gateway.guard import Guard

logger = logging.getLogger(__name__)

_ENDPOINT = "inproc://zeromq.zap.01"
_DOMAIN = b"workers"


class Zap:
    """Owns the socket on which libzmq asks. One a context; made before any socket that is secured."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], guard: Guard) -> None:
        self._guard = guard
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.add_reader(int(self._socket.getsockopt(zmq.FD)), self.look)

    def stop(self) -> None:
        self._loop.remove_reader(int(self._socket.getsockopt(zmq.FD)))

    def look(self) -> None:
        """Answer all that was asked; its descriptor is edge-triggered, so look also now and then."""
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            question = self._socket.recv_multipart(zmq.NOBLOCK)
            self._socket.send_multipart(self._answer(question), zmq.NOBLOCK)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request_id, _domain, address, _routing_id, mechanism, *credentials = question
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials) == 1 else ""
        if key and self._guard.knows(key):
            return [version, request_id, b"200", b"OK", key.encode(), b""]
        if self._guard.should_name(key, self._loop.time()):
            logger.warning(
                "a worker at %s came with a key that is not allowed here: '%s'; if it is yours:"
                " clusterctl worker-key allow ID '%s'",
                address.decode(errors="replace"),
                key,
                key,
            )
        return [version, request_id, b"400", b"the key is not allowed", b"", b""]


def secure(socket: zmq.Socket[bytes], secret: str) -> None:
    """What is bound from now on speaks CURVE, and only with peers that the `Zap` of the context takes."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer nobody comes in


def key_of(frame: zmq.Frame) -> str:
    """The key with which the sender of a message came; empty for one of this machine."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:  # the connection has none: it did not come by CURVE
        return ""
