"""Deltas are joined, and nothing overtakes anything."""

from __future__ import annotations

import pytest

from gateway.pieces import Piece, joined
from protocol.messages import Delta, TokenLogprob, ToolCallDelta


def text(value: str) -> Delta:
    return Delta("r", 0, value)


def thought(value: str) -> Delta:
    return Delta("r", 0, reasoning=value)


def call(index: int, name: str = "", arguments: str = "") -> Delta:
    return Delta("r", 0, tool_calls=(ToolCallDelta(index, name, arguments),))


@pytest.mark.parametrize(
    ("deltas", "pieces"),
    [
        ([], []),
        ([text("")], []),
        ([text("a"), text("b")], [Piece(text="ab")]),
        ([thought("a"), text("b"), text(""), text("c")], [Piece(reasoning="a", text="bc")]),
        ([text("a"), thought("b")], [Piece(text="a"), Piece(reasoning="b")]),
        (
            [call(0, "f"), call(0, "", "{"), call(0, "", "}"), call(1, "g", "{}")],
            [Piece(tool_calls=(ToolCallDelta(0, "f", "{}"), ToolCallDelta(1, "g", "{}")))],
        ),
        (
            [text("a"), call(0, "f", "{}"), text("b")],
            [Piece(text="a", tool_calls=(ToolCallDelta(0, "f", "{}"),)), Piece(text="b")],
        ),
    ],
)
def test_what_can_be_joined_is(deltas: list[Delta], pieces: list[Piece]):
    assert joined(deltas) == pieces


def test_logprobs_of_held_back_text_stay_apart_and_in_order():
    first, second = TokenLogprob(1, "a", -0.5), TokenLogprob(2, "b", -0.25)
    deltas = [Delta("r", 0, logprobs=(first,)), Delta("r", 0, "ab", logprobs=(second,))]
    assert joined(deltas) == [Piece(logprobs=(first,)), Piece(text="ab", logprobs=(second,))]
