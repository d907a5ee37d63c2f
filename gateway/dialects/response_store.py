"""The last responses of this gateway, so that a client may go on from one by its id. Pure, bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec

from protocol.errors import ClusterError, InvalidRequestError
from protocol.values import ChatMessage


class Kept(msgspec.Struct, frozen=True):
    """One response: the conversation up to its end, and the body that tells it."""

    turns: tuple[ChatMessage, ...]
    body: bytes
    owner: str = ""
    """The name of the API key by which it was asked for; nobody else is told of it."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        texts = [
            (turn.content, turn.reasoning, *(c.arguments for c in turn.tool_calls)) for turn in self.turns
        ]
        return len(self.body) + sum(len(str(text)) for row in texts for text in row)


class Reading:
    """One request's look at what is kept: it notes whose that was."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self.owners: dict[str, ClusterError] = {}
        """With what others are to be told."""

    def get(self, response_id: str, refusal: ClusterError) -> Kept | None:
        kept = self._store.get(response_id)
        if kept is not None:
            self.owners.setdefault(kept.owner, refusal)
        return kept

    def item(self, item_id: str, refusal: ClusterError) -> dict[str, Any] | None:
        """One item of the responses that are kept. Its id is made of its response's, and its position."""
        _kind, _, token = item_id.partition("_")
        for digits in (2, 3, 4):
            kept = self.get(f"resp_{token[:-digits]}", refusal)
            if kept is not None:
                output = msgspec.json.decode(kept.body)["output"]
                return next((item for item in output if item["id"] == item_id), None)
        return None


def not_kept() -> InvalidRequestError:
    """For a request that goes on from a response which is not there, or another's."""
    message = "previous_response_id names no response that this server keeps (any more); send the whole input"
    return InvalidRequestError(message, param="previous_response_id", reason="previous_response_not_found")


class ResponseStore:
    """Owns what is kept; what was used longest ago makes room.

    Locked: large requests are parsed on a thread.
    """

    def __init__(self, max_bytes: int = 64 * 1024 * 1024, max_responses: int = 4096) -> None:
        self._max_bytes = max_bytes
        self._max_responses = max_responses
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()

    def keep(self, response_id: str, kept: Kept) -> None:
        with self._lock:
            self.forget(response_id)
            self._kept[response_id] = kept
            self._bytes += kept.size
            while self._kept and (self._bytes > self._max_bytes or len(self._kept) > self._max_responses):
                self.forget(next(iter(self._kept)))

    def get(self, response_id: str) -> Kept | None:
        with self._lock:
            kept = self._kept.get(response_id)
            if kept is not None:
                self._kept.move_to_end(response_id)
            return kept

    def forget(self, response_id: str) -> bool:
        """Whether it was there."""
        with self._lock:
            kept = self._kept.pop(response_id, None)
            self._bytes -= 0 if kept is None else kept.size
            return kept is not None
