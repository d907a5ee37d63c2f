"""The gateway's side of the wire: one ROUTER socket on the event loop. A thin shell.

The socket's descriptor is edge-triggered: every wake-up reads until nothing is left, every send
is followed by another look, and a tick looks anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from gateway.flight import Sent
from gateway.guard import Guard
from gateway.membership import Membership
from gateway.zap import Zap, key_of, secure
from protocol import codec
from protocol.codec import MAX_MESSAGE_BYTES, FrameError
from protocol.messages import GatewayMessage

logger = logging.getLogger(__name__)

_BATCH = 256
"""Messages read at one go, before others have their turn."""
TICK_S = 0.1
_TICKS_OF_LEISURE = 5
"""While nobody waits for a place, time limits are looked at with every so many-th tick."""

_OPTIONS = {
    zmq.ROUTER_MANDATORY: 1,
    zmq.LINGER: 0,
    zmq.SNDHWM: 256,
    zmq.RCVHWM: 1024,
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
    zmq.HEARTBEAT_IVL: 2000,
    zmq.HEARTBEAT_TIMEOUT: 6000,
    zmq.HEARTBEAT_TTL: 6000,
    zmq.HANDSHAKE_IVL: 10_000,
    zmq.BACKLOG: 512,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
}


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))


class Wire:
    """Owns the ROUTER socket and its monitor. The `Transport` of everything pure."""

    def __init__(self, endpoints: Iterable[str], ping_interval_s: float, secret: str = "") -> None:
        """Bind all endpoints; with a `secret` key, tcp is encrypted and guarded.

        Raises `zmq.ZMQError` when one is taken.
        """
        self._ping_interval_s = ping_interval_s
        self.guard = Guard()
        self._context = zmq.Context(io_threads=1)
        self._zap = Zap(self._context, self.guard) if secret else None
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        try:
            for endpoint in sorted(endpoints):  # ipc before tcp, whose options it must not get
                if secret and endpoint.startswith("tcp:"):
                    secure(self._socket, secret)
                self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        self._membership: Membership
        self._also_tick: Callable[[float], None]
        self._all_read: Callable[[], None]
        self._started = False
        self._look_planned = False
        self._ticked = 0
        self.bad_frames = 0

    def start(
        self, membership: Membership, also_tick: Callable[[float], None], all_read: Callable[[], None]
    ) -> None:
        """Read from now on. `also_tick` is called ten times a second, `all_read` after messages were read."""
        self._membership = membership
        self._also_tick = also_tick
        self._all_read = all_read
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(_descriptor(self._socket), self._drain)
        self._loop.add_reader(_descriptor(self._monitor), self._disconnections)
        if self._zap is not None:
            self._zap.start(self._loop)
        self._ticks = self._loop.call_later(TICK_S, self._tick)
        self._pings = self._loop.call_later(self._ping_interval_s, self._ping)

    def close(self, linger_ms: int) -> None:
        if self._started:
            self._ticks.cancel()
            self._pings.cancel()
            self._loop.remove_reader(_descriptor(self._socket))
            self._loop.remove_reader(_descriptor(self._monitor))
            if self._zap is not None:
                self._zap.stop()
        self._socket.disable_monitor()
        self._context.destroy(linger=linger_ms)

    def send(self, connection: bytes, message: GatewayMessage, parts: Sequence[bytes] = ()) -> Sent:
        try:
            frames = [connection, *codec.encode(message, parts)]
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=not parts)
        except zmq.Again:
            return Sent.BUSY
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._loop.call_soon(self._lost, connection)
            return Sent.LOST
        self._look_soon()
        return Sent.OK

    def _look_soon(self) -> None:
        if not self._look_planned:
            self._look_planned = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._look_planned = False
        self._read()
        self._all_read()

    def _read(self) -> None:
        for _ in range(_BATCH):
            if not zmq.zmq_poll([(self._socket, zmq.POLLIN)], 0):
                return  # to ask costs a sixth of the exception
            key = ""
            try:
                if self._zap is None:
                    connection, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
                else:
                    parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                    key = key_of(parts[-1])
                    connection, *frames = [part.bytes for part in parts]
            except zmq.Again:
                return
            self._receive(connection, frames, key)
        self._look_soon()

    def _receive(self, connection: bytes, frames: list[bytes], key: str) -> None:
        now = self._loop.time()
        try:
            message, _parts = codec.decode(frames)
        except FrameError as error:
            self.bad_frames += 1
            logger.warning("a peer sent bytes that are no message: %s", error)
            self._membership.malformed(connection, now)
            return
        try:
            self._membership.receive(connection, message, now, key)
        except Exception:  # one bad message must not end the loop that serves all
            logger.exception("a %s could not be handled", type(message).__name__)

    def _lost(self, connection: bytes) -> None:
        self._membership.lost(connection, self._loop.time(), "its connection closed")

    def _disconnections(self) -> None:
        """Some peer is gone; which one, only a send to each tells."""
        seen = False
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._handshake_failed(int(event["value"]))
            seen = True
        if seen:
            self._membership.ping(self._loop.time())

    def _handshake_failed(self, fault: int) -> None:
        if self._zap is not None and fault == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            why = "it does not encrypt; give it keys: docs/operations.md, workers of other machines"
        elif self._zap is not None and fault == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            why = "it expects another key of this gateway; on its machine: clusterctl worker-key pin"
        elif fault == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            why = "it encrypts, and insecure_tcp is set here; set it on both machines, or on none"
        else:
            why = f"it does not speak as a worker does (fault {fault:#x})"
        if self.guard.should_name(why, self._loop.time()):
            logger.warning("a worker could not connect: %s", why)

    def _tick(self) -> None:
        self._ticks = self._loop.call_later(TICK_S, self._tick)
        if self._zap is not None:
            self._zap.look()
        self._drain()
        self._disconnections()
        now = self._loop.time()
        self._ticked += 1
        if self._membership.is_waited_for or self._ticked % _TICKS_OF_LEISURE == 0:
            self._membership.tick(now)
        self._also_tick(now)

    def _ping(self) -> None:
        self._pings = self._loop.call_later(self._ping_interval_s, self._ping)
        self._membership.ping(self._loop.time())
