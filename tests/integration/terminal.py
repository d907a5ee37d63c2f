"""A pseudo-terminal with a program in it, for tests of what people see and type."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.integration.cluster import PATIENCE_S

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """What the program wrote, and a keyboard."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.raw = ""
        self._pid: int | None = pid
        self._descriptor = descriptor

    @property
    def shown(self) -> str:
        """All that was ever written, without what moves the cursor or colours."""
        return _CONTROL.sub("", self.raw)

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def send(self, number: int) -> None:
        """A signal for the program."""
        assert self._pid is not None
        os.kill(self._pid, number)

    def until(self, is_there: Callable[[str], bool]) -> str:
        """What was shown, once that is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_there(self.shown):
            assert self._read(deadline), f"ended, or in vain: {self.shown[-3000:]!r}"
        return self.shown

    def news(self, is_there: Callable[[str], bool]) -> str:
        """What is shown from now on, once that is there."""
        before = len(self.shown)
        return self.until(lambda shown: is_there(shown[before:]))[before:]

    def end(self) -> int:
        """The program's exit code, once it has ended by itself."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        assert self._pid is not None
        pid, self._pid = self._pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        """End the program if it still runs."""
        os.close(self._descriptor)
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        try:
            read = os.read(self._descriptor, 4096) if readable else b""
        except OSError:  # Linux: the program has closed its side
            return False
        self.raw += read.decode(errors="replace")
        return bool(read)


@contextmanager
def in_terminal(
    command: list[str], environ: Mapping[str, str], *, columns: int = 80, lines: int = 24
) -> Iterator[Terminal]:
    """The program in a terminal of that size; skips where a machine has none."""
    try:
        pid, descriptor = pty.fork()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error}")
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.execvpe(command[0], command, environ)
    terminal = Terminal(pid, descriptor)
    try:
        yield terminal
    finally:
        terminal.close()
