"""The log-probabilities of an answer's text, apart from those of its reasoning and its calls. Pure."""

from __future__ import annotations

from typing import Any

from gateway.dialects.openai_chat_answer import logprobs_object
from gateway.pieces import Piece
from protocol.messages import TokenLogprob


class TextLogprobs:
    """Owns those of tokens of which nothing was shown yet: they are of what comes next, whatever it is.

    Those at the end, of which nothing is ever shown, are of a stop string or an end token.
    """

    def __init__(self) -> None:
        self._held: list[TokenLogprob] = []

    def feed(self, piece: Piece) -> list[dict[str, Any]]:
        """Those of the piece's text, as clients read them."""
        self._held += piece.logprobs
        if not (piece.text or piece.reasoning or piece.tool_calls):
            return []
        found, self._held = self._held, []
        return [_with_bytes(entry) for entry in logprobs_object(found)["content"]] if piece.text else []


def _with_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """Here clients insist on them."""
    entry["bytes"] = _bytes(entry)
    for other in entry["top_logprobs"]:
        other["bytes"] = _bytes(other)
    return entry


def _bytes(entry: dict[str, Any]) -> list[int]:
    found: list[int] | None = entry["bytes"]
    return list(entry["token"].encode()) if found is None else found
