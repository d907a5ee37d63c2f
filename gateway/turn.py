"""What is to be done at the end of the event loop's turn: one callback of the loop for all of it.

What is to be written is first made for all, and then written for all: the way through the system's sockets
costs the processor what it remembers of our code, and that once a turn rather than once a stream.
"""

from __future__ import annotations

from collections.abc import Callable


class Turn:
    """Collects what many streams want to do after all messages of a turn were read."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._due: list[Callable[[], None]] = []
        self._writes: list[tuple[Callable[[bytes], None], bytes]] = []

    def finally_do(self, action: Callable[[], None]) -> None:
        """`action` must not raise."""
        if not self._due:
            self._call_soon(self._end)
        self._due.append(action)

    def write(self, write: Callable[[bytes], None], piece: bytes) -> None:
        """For actions: call `write`, which must not raise, after the last of them."""
        self._writes.append((write, piece))

    def _end(self) -> None:
        due, self._due = self._due, []
        for action in due:
            action()
        writes, self._writes = self._writes, []
        for write, piece in writes:
            write(piece)
