"""Answers for tests of dialects: made by hand, and drawn at random with their split into deltas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.dialects.base import Answered, Asked, Dialect, Identity
from gateway.pieces import Piece, joined
from protocol.messages import Delta, Finished, ToolCallDelta
from protocol.values import Load, Usage

IDENTITY = Identity("0123456789abcdef", 1700000000, "alias", "fp")
USAGE = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=5, reasoning_tokens=2)


def finished(reason: str = "stop", matched_stop: str | int | None = None) -> Finished:
    return Finished(
        request_id="r",
        attempt=0,
        finish_reason=reason,
        usage=USAGE,
        load=Load(),
        matched_stop=matched_stop,
    )


def delta(text: str = "", reasoning: str = "", calls: Sequence[ToolCallDelta] = ()) -> Delta:
    return Delta("r", 0, text, reasoning=reasoning, tool_calls=tuple(calls))


def call(index: int, name: str = "", arguments: str = "") -> ToolCallDelta:
    return ToolCallDelta(index, name, arguments)


def streamed(dialect: Dialect, asked: Asked, pieces: Sequence[Piece], end: Finished) -> bytes:
    """All bytes of one streamed answer."""
    writer = dialect.writer(asked, IDENTITY)
    data = writer.start(end.usage)
    for piece in pieces:
        data += writer.piece(0, piece)
    return data + writer.finish(0, end) + writer.end(end.usage)


def whole(dialect: Dialect, asked: Asked, pieces: Sequence[Piece], end: Finished) -> Any:
    return json.loads(dialect.whole(asked, IDENTITY, [Answered(tuple(pieces), end)], end.usage))


def events(data: bytes) -> list[Any]:
    """The events of a stream. Each is one `data:` line, after `event:` with the same name if any."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if lines == ["data: [DONE]"]:
            continue
        event = json.loads(lines[-1].removeprefix("data: "))
        if len(lines) == 2:
            assert lines[0] == f"event: {event['type']}"
        else:
            assert len(lines) == 1
        found.append(event)
    return found


_TEXTS = st.text(max_size=12)
_CALL_ARGUMENTS = st.sampled_from(['{"a": 1}', "{}", '{"path": "C:\\\\d+ %s 👋"}', ""])


@st.composite
def answers_split_twice(draw: st.DrawFn) -> tuple[list[Piece], list[Piece]]:
    """One answer cut into deltas in two ways, each joined as a slow client would see it."""
    parts: list[tuple[str, str, int]] = []
    if draw(st.booleans()):
        parts.append(("reasoning", draw(_TEXTS), 0))
    parts.append(("text", draw(_TEXTS), 0))
    for number in range(draw(st.integers(0, 2))):
        parts.append(("call", draw(_CALL_ARGUMENTS), number))
        if draw(st.booleans()):
            parts.append(("text", draw(_TEXTS), 0))
    return draw(_split(parts)), draw(_split(parts))


@st.composite
def _split(draw: st.DrawFn, parts: list[tuple[str, str, int]]) -> list[Piece]:
    deltas = []
    for kind, text, number in parts:
        if kind == "call":
            deltas.append(delta(calls=[call(number, f"tool_{number}")]))
        left = text
        while left:
            size = draw(st.integers(1, len(left)))
            cut, left = left[:size], left[size:]
            made = {
                "call": delta(calls=[call(number, "", cut)]),
                "text": delta(text=cut),
                "reasoning": delta(reasoning=cut),
            }
            deltas.append(made[kind])
    return [piece for some in draw(_groups(deltas)) for piece in joined(some)]


@st.composite
def _groups(draw: st.DrawFn, deltas: list[Delta]) -> list[list[Delta]]:
    """What came between two looks."""
    groups = []
    while deltas:
        size = draw(st.integers(1, len(deltas)))
        groups.append(deltas[:size])
        deltas = deltas[size:]
    return groups
