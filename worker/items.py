"""What engines yield, made fit to be sent, or refused: a foreign engine may yield anything. Pure.

One bad item must not reach the message that carries the deltas of all requests.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from protocol.messages import TokenLogprob
from worker.engine.base import GenerationOutput
from worker.engine.output import EngineOutput

MOST_AT_ONCE = 1 << 20
"""Characters, and tokens, of one item."""
_MOST_TOKEN_ID = 2**63 - 1
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "mtp_drafts", "mtp_accepted")


def checked(item: Any) -> GenerationOutput:
    """The item itself where it is as the contract says, else one of the same meaning.

    Raises `TypeError`, `ValueError` or `AttributeError` where there is none.
    """
    return item if _is_plain(item) else _plain(item)


def sendable(text: str) -> str:
    """The text that an item adds. Raises `ValueError` when it cannot be sent."""
    if len(text) > MOST_AT_ONCE:
        raise ValueError(f"one item brings {len(text)} characters")
    if not text.isascii():
        text.encode()
    return text


def _is_plain(item: Any) -> bool:
    return (
        isinstance(item, GenerationOutput)
        and type(item.text) is type(item.new_text) is str
        and type(item.tokens) is list
        and len(item.tokens) <= MOST_AT_ONCE
        and all(type(token) is int and 0 <= token <= _MOST_TOKEN_ID for token in item.tokens)
        and all(type(count := getattr(item, name, 0)) is int and count >= 0 for name in _COUNTS)
        and isinstance(getattr(item, "matched_stop", None), str | int | None)
        and all(type(entry) is TokenLogprob for entry in getattr(item, "logprobs", ()))
    )


def _plain(item: Any) -> EngineOutput:
    matched = getattr(item, "matched_stop", None)
    counts: dict[str, Any] = {name: _count(name, getattr(item, name, 0)) for name in _COUNTS}
    return EngineOutput(
        text=_text(item.text),
        new_text=_text(item.new_text),
        tokens=_tokens(item.tokens),
        finish_reason=item.finish_reason,
        finished=bool(item.finished),
        matched_stop=matched if isinstance(matched, str | int) else None,
        in_reasoning=bool(getattr(item, "in_reasoning", False)),
        logprobs=[entry for entry in getattr(item, "logprobs", ()) if type(entry) is TokenLogprob],
        **counts,
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"an item's text is of type {type(value).__name__}, not str")
    return value


def _tokens(values: Iterable[Any] | None) -> list[int]:
    tokens = [operator.index(value) for value in (() if values is None else values)]
    if len(tokens) > MOST_AT_ONCE or any(not 0 <= token <= _MOST_TOKEN_ID for token in tokens):
        raise ValueError("an item's tokens are too many, or are no token ids")
    return tokens


def _count(name: str, value: Any) -> int:
    count = 0 if value is None else operator.index(value)
    if count < 0:
        raise ValueError(f"an item's {name} is {count}")
    return count
