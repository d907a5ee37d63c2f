"""One connection to one gateway: a DEALER that says hello, never blocks, and tells when it is lost.

The socket's descriptor is edge-triggered: it is read until empty, and looked at again after each
send and at each tick.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol.codec import MAX_MESSAGE_BYTES, FrameError, decode, encode
from protocol.messages import AnyMessage, Heartbeat, Message, Unknown
from worker.dialing import Dial, why_refused
from worker.reach import ReachWatch

logger = logging.getLogger(__name__)

TICK_S = 0.1
STUCK_S = 5.0
"""An outbox that stays full for so long ends that gateway's requests."""
OUTBOX_MESSAGES = 4096
READS_A_TURN = 256
START_JITTER_S = 0.2
REDIAL_S = 2.0
HANDSHAKE_FAILED = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_OPTIONS = {
    zmq.IMMEDIATE: 1,  # nothing queues for a gateway that is not there
    zmq.LINGER: 0,
    zmq.SNDHWM: 1024,
    zmq.RCVHWM: 256,
    zmq.CONNECT_TIMEOUT: 3000,
    zmq.HANDSHAKE_IVL: 10_000,
    zmq.HEARTBEAT_IVL: 2000,
    zmq.HEARTBEAT_TIMEOUT: 6000,
    zmq.HEARTBEAT_TTL: 6000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
    zmq.RECONNECT_IVL_MAX: 5000,
}


class Peer(Protocol):
    """The worker behind its links."""

    def greeting(self) -> Sequence[Message]:
        """What to say first on a connection."""

    def received(self, gateway: str, message: AnyMessage | Unknown, parts: Sequence[bytes]) -> None:
        """`parts`: the binary frames behind the message."""

    def malformed(self, gateway: str, error: FrameError) -> None: ...

    def lost(self, gateway: str, why: str) -> None:
        """What was sent may not have arrived: that gateway's requests cannot go on."""


class Link:
    """Owns the socket and its monitor; lives on the event loop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], dial: Dial, peer: Peer) -> None:
        self.gateway = dial.gateway
        self._dial = dial
        self._endpoint = dial.endpoint
        self._peer = peer
        self._redial: asyncio.TimerHandle | None = None
        self._reach = ReachWatch(dial)
        self._failed_handshakes = 0
        """Since the last one that did not."""
        self._refusal = ""
        """Why, as it was logged."""
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[list[bytes]] = deque()
        self._full_since: float | None = None
        self._heard_at = self._loop.time()
        self._look_due = False
        self.connected = False
        self._socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        if dial.curve is not None:
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, dial.curve.secret.encode())
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, dial.curve.public.encode())
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, dial.curve.gateway.encode())
        jitter = random.random()  # noqa: S311 (spreads a fleet's reconnects, keeps no secret)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100 + int(100 * jitter))
        events = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | HANDSHAKE_FAILED
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(events)
        self._loop.add_reader(self._monitor, self._look)
        self._loop.add_reader(self._socket, self._look)
        self._timer = self._loop.call_later(START_JITTER_S * jitter, self._connect)

    def send(self, message: Message) -> None:
        """Send now, or as soon as there is room. Without a connection there is nobody to tell."""
        if not self.connected or (self._outbox and isinstance(message, Heartbeat)):
            return
        try:
            self._outbox.append(encode(message))
        except FrameError:
            logger.exception("a %s for %s cannot be sent", type(message).__name__, self.gateway)
            return
        self._push()
        self._look_soon()

    def is_silent(self, for_s: float) -> bool:
        """Whether a connected gateway said nothing for so long; asked again, it counts from now."""
        now = self._loop.time()
        if not self.connected or now - self._heard_at <= for_s:
            return False
        self._heard_at = now
        return True

    def close(self, linger_ms: int) -> None:
        self._timer.cancel()
        self._reach.close()
        self._cancel_redial()
        for socket in (self._socket, self._monitor):
            self._loop.remove_reader(socket)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)
        self.connected = False

    def _connect(self) -> None:
        self._socket.connect(self._endpoint)
        self._tick()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        self._look()
        self._reach.look(connected=self.connected, now=self._loop.time())
        late = self._full_since is not None and self._loop.time() - self._full_since > STUCK_S
        if late or len(self._outbox) > OUTBOX_MESSAGES:
            # A new connection, since messages of this one are about to be missing.
            self._socket.disconnect(self._endpoint)
            self._lose("it takes no messages")
            self._socket.connect(self._endpoint)

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Everything that can be done now: news of the connection, messages in, messages out."""
        self._look_due = False
        if self._socket.closed:
            return
        while _is_readable(self._monitor):
            happened = parse_monitor_message(self._monitor.recv_multipart())
            self._happened(happened["event"], happened["value"])
        for _ in range(READS_A_TURN):
            if self._socket.closed or not _is_readable(self._socket):
                break
            self._read(self._socket.recv_multipart())
        else:
            self._look_soon()
        if self.connected:
            self._push()

    def _happened(self, event: int, value: int) -> None:
        if event & HANDSHAKE_FAILED:
            self._refused(event, value)
        elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
            logger.info("connected to gateway %s", self.gateway)
            self.connected = True
            self._failed_handshakes, self._refusal = 0, ""
            self._heard_at = self._loop.time()
            self._outbox.extendleft(encode(message) for message in reversed(self._peer.greeting()))
        elif self.connected:
            self._lose("the connection broke")

    def _refused(self, event: int, value: int) -> None:
        """Say why, and try again; a gateway that just ended has broken off a handshake, too."""
        self._failed_handshakes += 1
        if event != zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            # ZeroMQ itself gives up here, though the other side may be put right at any time.
            self._cancel_redial()
            self._redial = self._loop.call_later(REDIAL_S, self._dial_again)
        elif self._dial.curve is None or self._failed_handshakes == 1:
            return
        why = why_refused(self._dial, event, value)
        if why != self._refusal:
            self._refusal = why
            logger.warning("gateway %s cannot be reached: %s", self.gateway, why)

    def _cancel_redial(self) -> None:
        if self._redial is not None:
            self._redial.cancel()

    def _dial_again(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self._endpoint)
        self._socket.connect(self._endpoint)

    def _lose(self, why: str) -> None:
        logger.warning("lost gateway %s: %s", self.gateway, why)
        self.connected = False
        self._outbox.clear()
        self._full_since = None
        self._peer.lost(self.gateway, why)

    def _read(self, frames: list[bytes]) -> None:
        self._heard_at = self._loop.time()
        try:
            message, parts = decode(frames)
        except FrameError as error:
            self._peer.malformed(self.gateway, error)
            return
        self._peer.received(self.gateway, message, parts)

    def _push(self) -> None:
        while self._outbox:
            try:
                self._socket.send_multipart(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                if self._full_since is None:
                    self._full_since = self._loop.time()
                return
            self._outbox.popleft()
        self._full_since = None


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
