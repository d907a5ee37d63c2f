"""What came of one answer, in order: deltas joined as far as their order stays. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from protocol.messages import Delta, TokenLogprob, ToolCallDelta


class Piece(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A part of an answer; inside it, reasoning comes first, then text, then tool calls.

    Or the prompt, where that was asked for: the first piece, and nothing else in it.
    """

    reasoning: str = ""
    text: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    completion_tokens: int = 0
    """Of the answer so far."""
    prompt_text: str = ""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """The first one means nothing: nothing comes before it."""


def joined(deltas: list[Delta]) -> list[Piece]:
    """The deltas as few pieces: nothing is lost, and nothing overtakes anything."""
    if len(deltas) == 1:  # as it is while the client keeps up
        (only,) = deltas
        text, reasoning, calls, logprobs = only.text, only.reasoning, only.tool_calls, only.logprobs
        if text or reasoning or calls or logprobs:
            return [Piece(reasoning, text, calls, logprobs, only.completion_tokens)]
        return []
    return [piece for group in _groups(deltas) if _says_something(piece := _piece(group))]


def _groups(deltas: list[Delta]) -> list[list[Delta]]:
    groups: list[list[Delta]] = []
    last = 0
    before: list[int] = []
    # Who asks for log-probabilities wants to know of what they are.
    scored = any(delta.logprobs for delta in deltas)
    for delta in deltas:
        present = _ranks(delta)
        if not groups or (present and present[0] < last) or (scored and present != before):
            groups.append([])
            last = 0
        before = present
        groups[-1].append(delta)
        last = max([last, *present])
    return groups


def _ranks(delta: Delta) -> list[int]:
    """The places of what the delta has: reasoning 1, text 2, tool calls 3."""
    return [rank for rank, there in ((1, delta.reasoning), (2, delta.text), (3, delta.tool_calls)) if there]


def _piece(group: list[Delta]) -> Piece:
    return Piece(
        reasoning="".join(delta.reasoning for delta in group),
        text="".join(delta.text for delta in group),
        tool_calls=_calls(call for delta in group for call in delta.tool_calls),
        logprobs=tuple(logprob for delta in group for logprob in delta.logprobs),
        completion_tokens=group[-1].completion_tokens,
    )


def _says_something(piece: Piece) -> bool:
    return bool(piece.text or piece.reasoning or piece.tool_calls or piece.logprobs)


def _calls(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """Neighbours of one call as one."""
    runs: list[tuple[int, list[str], list[str]]] = []
    for delta in deltas:
        if not runs or runs[-1][0] != delta.index:
            runs.append((delta.index, [], []))
        runs[-1][1].append(delta.name)
        runs[-1][2].append(delta.arguments)
    return tuple(ToolCallDelta(index, "".join(names), "".join(texts)) for index, names, texts in runs)
