"""How clusterctl talks to the supervisor: one JSON line each way over a unix socket of mode 0600."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from clusterctl.supervision import Process
from protocol.addresses import SUPERVISOR, Home
from protocol.folders import socket_folder

logger = logging.getLogger(__name__)

NAME = SUPERVISOR
_PEER_TIMEOUT_S = 2.0
_LONGEST_LINE = 4 * 1024 * 1024


class SupervisorAbsentError(RuntimeError):
    """No supervisor answers in this home."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What clusterctl asks for."""

    command: Literal["status", "reconcile", "down", "restart", "leave"]
    retry: bool = False
    """With reconcile: start what is stopped, parked or pausing, too."""
    environment: dict[str, str] | None = None
    """With reconcile: for everything that is started from now on."""
    id: str = ""
    """With restart: of which process."""
    told_pid: int | None = None
    """With restart: the process that was already told to end; it gets no signal."""
    drain_s: float | None = None
    """With restart: so long it may take to end, if not as long as the configuration says."""


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """One supervised process."""

    id: str
    kind: str
    phase: str
    pid: int | None
    ready: bool
    starts: int
    restarts: int
    last_exit: int | None
    last_error: str
    outdated: bool
    """It runs with an older configuration than the one that is wanted."""
    wanted: bool
    last_log: tuple[str, ...] = ()
    """Of a parked one."""
    digest: str = ""
    """Of what it was started with; empty where nobody knows."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor's answer. With `error`, nothing was done, for that reason."""

    pid: int
    config: str
    stopping: bool
    processes: tuple[ProcessView, ...] = ()
    error: str = ""
    told: str = ""
    """The digest of the whole configuration as it was last read; empty where nobody knows."""
    installation: str = ""
    """Which one the supervisor runs from, and all that it starts."""
    environment: dict[str, str] | None = None
    """With leave: of what it started, for the next supervisor."""


def view_of(process: Process) -> ProcessView:
    """What is told about a process."""
    return ProcessView(
        id=process.spec.id,
        kind=process.spec.kind.value,
        phase=process.phase.value,
        pid=process.pid,
        ready=process.ready_at is not None,
        starts=process.starts,
        restarts=process.restarts,
        last_exit=process.last_exit,
        last_error=process.last_error,
        outdated=process.alive and process.running_digest != process.spec.digest,
        wanted=process.wanted,
        last_log=process.last_log,
        digest=process.running_digest if process.alive else "",
    )


def ask(home: Home, request: Request, timeout_s: float = 10.0) -> Reply:
    """Send a request to the home's supervisor. Raises `SupervisorAbsentError`."""
    path = home.socket(NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            line = _read_line(connection)
            return msgspec.json.decode(line, type=Reply)
        except (OSError, msgspec.MsgspecError) as error:
            raise SupervisorAbsentError(f"no supervisor answers at {path}: {error}") from error


class ControlServer:
    """The supervisor's end. Used by its only thread; make it while holding the home's lock."""

    def __init__(self, home: Home) -> None:
        socket_folder(home)
        self.path: Path = home.socket(NAME)
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        old_mask = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        finally:
            os.umask(old_mask)
        self._listener.listen(16)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        return self._listener.fileno()

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener.close()

    def serve(self, answer: Callable[[Request], Reply]) -> None:
        """Answer one waiting client; a client that makes no sense is dropped."""
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_PEER_TIMEOUT_S)
            try:
                request = msgspec.json.decode(_read_line(connection), type=Request)
            except msgspec.MsgspecError as error:
                logger.warning("a request on the control socket was not understood: %s", error)
                return
            connection.sendall(msgspec.json.encode(answer(request)) + b"\n")


def _read_line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n") and len(received) < _LONGEST_LINE:
        piece = connection.recv(65536)
        if not piece:
            break
        received += piece
    return bytes(received)
