"""What one turn of the event loop has to tell one gateway, in an order that keeps each request's. Pure."""

from __future__ import annotations

from protocol.messages import Delta, Deltas, Failed, Finished, Message


class TurnOutbox:
    """Collects messages; the deltas of all requests become one message.

    A request's `Accepted` and `Started` go before its deltas, its `Finished` or `Failed` after.
    """

    def __init__(self) -> None:
        self._before: list[Message] = []
        self._deltas: list[Delta] = []
        self._after: list[Message] = []

    def __bool__(self) -> bool:
        return bool(self._before or self._deltas or self._after)

    def add(self, message: Message | Delta) -> None:
        if isinstance(message, Delta):
            self._deltas.append(message)
        elif isinstance(message, Finished | Failed):
            self._after.append(message)
        else:
            self._before.append(message)

    def take(self) -> list[Message]:
        """All of it, in the order in which to send."""
        deltas: list[Message] = [Deltas(deltas=tuple(self._deltas))] if self._deltas else []
        messages = [*self._before, *deltas, *self._after]
        self._before, self._deltas, self._after = [], [], []
        return messages
