"""What is to be done when all messages of a turn are read.

What is to be written is first made for all, and then written for all: the way through the system's sockets
costs the processor what it remembers of our code, and that once a turn rather than once a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Pushing(Protocol):
    def push_now(self) -> None:
        """Make what is to be written. Must not raise."""


class Turn:
    """Collects what many streams want to do. Plain lists, as they are added to for each token."""

    def __init__(self) -> None:
        self.due: list[Pushing] = []
        self.writes: list[tuple[Callable[[bytes], None], bytes]] = []
        """Filled by those that are due; what is called must not raise."""

    def end(self) -> None:
        """All was read: write. What becomes due meanwhile is done at the end of the next turn."""
        due, self.due = self.due, []
        for group in due:
            group.push_now()
        writes, self.writes = self.writes, []
        for write, piece in writes:
            write(piece)
