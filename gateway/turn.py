"""What is to be done at the end of the event loop's turn: one callback of the loop for all of it."""

from __future__ import annotations

from collections.abc import Callable


class Turn:
    """Collects what many streams want to do after all messages of a turn were read."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._due: list[Callable[[], None]] = []

    def finally_do(self, action: Callable[[], None]) -> None:
        """`action` must not raise."""
        if not self._due:
            self._call_soon(self._end)
        self._due.append(action)

    def _end(self) -> None:
        due, self._due = self._due, []
        for action in due:
            action()
