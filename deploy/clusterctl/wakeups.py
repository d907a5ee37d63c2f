"""Signals as something that a loop can wait for."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def signal_wakeups(stop: Callable[[], None]) -> Iterator[socket.socket]:
    """A socket that becomes readable with each signal; SIGTERM and SIGINT call `stop`, too.

    SIGHUP is survived: the terminal may close. Only in the main thread.
    """

    def call_stop(_number: int, _frame: FrameType | None) -> None:
        stop()

    def wake(_number: int, _frame: FrameType | None) -> None:
        """Unlike SIG_IGN, a handler is not inherited by the processes that are started."""

    handlers = {
        signal.SIGTERM: call_stop,
        signal.SIGINT: call_stop,
        signal.SIGHUP: wake,
        signal.SIGCHLD: wake,
    }
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        old_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield reader
        finally:
            for number, old in old_handlers.items():
                signal.signal(number, old)
            signal.set_wakeup_fd(old_descriptor)
