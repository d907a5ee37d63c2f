"""Processes of this machine: start, signal, notice the end of, and recognise them after a restart.

A process is known by its pid and its `identity`, so that a pid that was given to another program
is not taken for it. Both stand in `run/ID.pid`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from clusterctl.identity import identity_of
from protocol.logs import message_of

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LEAST_FREE_BYTES = 64 * 1024
_TAIL_BYTES = 8192
_LINE_BYTES = 1000
_FORK_S = 30.0
_REASON_CHARACTERS = 500


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a pid file."""

    pid: Annotated[int, msgspec.Meta(ge=1)]
    identity: str
    kind: str
    digest: str
    drain_s: float


class Child:
    """A running process of ours. Used by the supervisor's only thread."""

    def __init__(self, pid: int, identity: str, process: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.identity = identity
        self._process = process

    @property
    def adopted(self) -> bool:
        """Whether it is no child of this process, so that its end must be looked for."""
        return self._process is None

    def ended(self) -> bool:
        if self._process is not None:
            return self._process.poll() is not None
        return not is_running(self.pid, self.identity)

    @property
    def exit_code(self) -> int | None:
        """Once it has ended; None where only the parent could know."""
        return None if self._process is None else self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """It and what it started."""
        if not self.ended():
            self.kill_group()

    def kill_group(self) -> None:
        """End what it started: it leads a group of its own, which may outlive it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def launch(command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path) -> Child:
    """Start a process that outlives the terminal and writes to the end of `log`. Raises `OSError`."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    return Child(process.pid, identity_of(process.pid) or "", process)


def find_children(commands: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Child]:
    """By the keys of `commands`: the running processes with those command lines in that folder."""
    wanted = {tuple(command): key for key, command in commands.items()}
    found: dict[str, Child] = {}
    for process in psutil.process_iter():
        try:
            key = wanted.get(tuple(process.cmdline()))
            if key is not None and Path(process.cwd()) == folder.resolve():
                found[key] = Child(process.pid, identity_of(process.pid) or "", None)
        except psutil.Error:
            continue
    return found


def is_running(pid: int, identity: str) -> bool:
    """Whether the process of that pid runs, and is that one."""
    return identity_of(pid) == identity


def write_record(path: Path, record: Record) -> None:
    """Write a pid file, whole or not at all. Raises `OSError`."""
    aside = path.with_suffix(".pid.new")
    try:
        aside.write_bytes(msgspec.json.encode(record))
        aside.rename(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def read_record(path: Path) -> Record | None:
    """The record of a process that still runs; None for any other file."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None
    return record if is_running(record.pid, record.identity) else None


def last_words(log: Path, since: int) -> str:
    """The last line that a process wrote to its log after byte `since`, without the log's prefix."""
    lines = [line.strip() for line in _tail(log, since, _TAIL_BYTES)]
    if not lines:
        return ""
    return _CONTROL.sub("", message_of(lines[-1]))[:_REASON_CHARACTERS]


def why_silent(folder: Path) -> str:
    """What kept a process from writing its last words there: a full disk; empty where nothing did."""
    full = shutil.disk_usage(folder).free < _LEAST_FREE_BYTES
    return f"the disk of {folder} is full; make room" if full else ""


def last_lines(log: Path, count: int) -> tuple[str, ...]:
    """The end of a log, for people."""
    lines = _tail(log, 0, count * _LINE_BYTES)[-count:]
    return tuple(_CONTROL.sub("", line)[:_LINE_BYTES] for line in lines)


def _tail(log: Path, since: int, size: int) -> list[str]:
    """The lines that are not empty in the last `size` bytes after byte `since`."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = since if since <= end else 0  # it was moved aside meanwhile, and begun anew
            file.seek(max(begin, end - size))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def size_of(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


def describe_exit(code: int | None, words: str) -> str:
    """Why a process ended, for people; `words` are its last, which explain only an exit of its own."""
    if code is None:
        return "it ended"
    if code >= 0:
        return f"{words} (exit code {code})" if words else f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def launch_detached(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, log: Path
) -> tuple[int, str]:
    """Run a command that forks, says its child's pid and ends; the child keeps nothing of the caller's.

    The child's pid and identity. Raises `OSError`, `ValueError` and `SubprocessError`.
    """
    with log.open("ab") as file:
        os.fchmod(file.fileno(), 0o600)
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
            check=True,
            timeout=_FORK_S,
        ).stdout
    pid = int(said)
    return pid, identity_of(pid) or ""
