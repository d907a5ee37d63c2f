"""The lock of a node on the node itself, so that those who operate it from two machines do not collide."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from clusterctl.nodes import Node, alone_with, installed_version
from clusterctl.operations import OperationError
from clusterctl.ssh import HostUnreachableError
from protocol.addresses import Home

_BEAT_S = 20.0
_SILENCE_S = 120.0
"""Whoever says nothing for so long is gone, and the lock with them: a cable was pulled."""
_ANSWER_S = 30.0
_HELD = b"held"
_BUSY = "busy"
_HOLD = r"""
import fcntl, os, select, sys, time
path, who, patience, silence = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
deadline = time.monotonic() + patience
lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
while True:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        if time.monotonic() > deadline:
            sys.exit("busy " + os.read(lock, 200).decode(errors="replace"))
        time.sleep(0.1)
os.ftruncate(lock, 0)
os.write(lock, who.encode())
print("held", flush=True)
while select.select([0], [], [], silence)[0] and os.read(0, 64):
    pass
os.ftruncate(lock, 0)
"""
"""Holds the lock until its input ends, or is silent for too long."""


@dataclass(frozen=True)
class Held:
    """A node that nobody else changes at this moment."""

    node: Node
    version: str
    """The one that is used there."""


@contextlib.contextmanager
def changing(home: Home, node: Node, patience_s: float) -> Iterator[Held]:
    """Be the only one who changes a node.

    Raises `LockHeldError` (another command here), `OperationError` (another machine's), `RefusedError`
    (nothing is installed there) and `HostUnreachableError`.
    """
    with alone_with(home, node.name, patience_s):
        held = Held(node, installed_version(node))
        with held_there(held, patience_s):
            yield held


@contextlib.contextmanager
def held_there(held: Held, patience_s: float) -> Iterator[None]:
    """Hold the node's own lock. Raises `OperationError` and `HostUnreachableError`."""
    node = held.node
    python = str(node.prefix / "versions" / held.version / "bin" / "python")
    who = f"{getpass.getuser()} on {socket.gethostname()} (pid {os.getpid()})"
    words = [str(node.prefix / "etc" / "operator.lock"), who, str(patience_s), str(_SILENCE_S)]
    command = node.runner.command([python, "-I", "-c", _HOLD, *words])
    released = threading.Event()
    inner, outer = socket.socketpair()
    with outer, tempfile.TemporaryFile() as told:
        with inner:
            holder = subprocess.Popen(
                command,
                stdin=inner.fileno(),
                stdout=inner.fileno(),
                stderr=told,
                start_new_session=True,  # Ctrl-C is for us, who may have to undo something there
            )
        try:
            if not _is_held(node, outer, patience_s):
                raise _refusal(node, _last_words(holder, told))
            threading.Thread(target=_beat, args=(outer, released), daemon=True).start()
            yield
        finally:
            released.set()
            outer.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(_ANSWER_S)
            holder.kill()
            holder.wait()


def _last_words(holder: subprocess.Popen[bytes], told: IO[bytes]) -> str:
    """Why it does not hold the lock. What it says may come after its output has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        holder.wait(_ANSWER_S)
    told.seek(0)
    said = told.read().decode(errors="replace").strip().splitlines()
    return said[-1] if said else "it says nothing"


def _is_held(node: Node, holder: socket.socket, patience_s: float) -> bool:
    holder.settimeout(patience_s + _ANSWER_S)
    try:
        return holder.recv(len(_HELD)) == _HELD
    except TimeoutError as error:
        raise HostUnreachableError(f"{node.name} does not answer; try again") from error


def _refusal(node: Node, said: str) -> Exception:
    if said.startswith(_BUSY):
        other = said.removeprefix(_BUSY).strip() or "somebody"
        return OperationError(f"{node.name} is being changed by {other}; try again when that is done")
    return HostUnreachableError(f"{node.name}: its lock cannot be taken: {said}")


def _beat(holder: socket.socket, released: threading.Event) -> None:
    while not released.wait(_BEAT_S):
        try:
            holder.sendall(b"\n")
        except OSError:  # the connection is gone, which the next command there tells
            return
