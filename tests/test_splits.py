"""One answer, whatever pieces it comes in: from an engine's tokens to what each dialect's client reads. Pure.

The worker's parsers and the gateway's encoders in a row, without the wire between them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.choices import generates
from gateway.dialects.anthropic_answer import Messages
from gateway.dialects.base import Answered, Asked, Dialect, Identity
from gateway.dialects.ollama import parse_chat
from gateway.dialects.ollama_answer import Ollama
from gateway.dialects.openai_chat_answer import ChatCompletions
from gateway.dialects.openai_completions import Completions
from gateway.dialects.openai_responses_answer import Responses
from gateway.pieces import Piece, joined
from protocol.messages import Delta, Finished, TokenLogprob
from tests.conformance import spoken
from worker.answer import Answer
from worker.engine.output import EngineOutput
from worker.parsers.base import marked
from worker.parsers.json_calls import read_json_calls

SYNTAX = marked(("<think>", "</think>"), ("<tool_call>", "</tool_call>"), read_json_calls)
IDENTITY = Identity("0123456789abcdef", 1700000000, "m", None)
STOP = "aba\n"
DIALECTS: dict[str, Dialect] = {
    spoken.CHAT: ChatCompletions(),
    spoken.COMPLETIONS: Completions(),
    spoken.RESPONSES: Responses(),
    spoken.MESSAGES: Messages(drop_billing_line=True),
    spoken.OLLAMA: Ollama(parse_chat),
}
_LOGPROBS: dict[str, dict[str, Any]] = {
    spoken.CHAT: {"logprobs": True, "top_logprobs": 1},
    spoken.COMPLETIONS: {"logprobs": 1},
    spoken.RESPONSES: {"include": ["message.output_text.logprobs"]},
}
GOOD = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": "</tool_call> é"}}</tool_call>'
PARTS = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", GOOD, '<tool_call>{"name": "g"}</tool_call>'),
        *(
            '<tool_call>{"name": "f", "argu',
            '{"name": "f"}',
            '"',
            "\\",
            "{",
            "<",
            "</",
            "a",
            "b",
            "aba",
            STOP,
        ),
        *(" ", "\n", "\n\n", "é", "👩\u200d👧", "data: x\n\n", "\x00", "\ufffd"),
    ]
)


def asked(path: str, *, logprobs: bool, stream: bool) -> Asked:
    fields: dict[str, Any] = _LOGPROBS.get(path, {}) if logprobs else {}
    tools = () if path == spoken.COMPLETIONS else ("f", "g")
    stop = (STOP,) if path in spoken.WITH_STOPS else ()
    body = spoken.body(path, "hi", tools=tools, stop=stop, stream=stream, **fields)
    return DIALECTS[path].parse(json.dumps(body).encode())


def answered(request: Asked, pieces: list[str], finish: str) -> tuple[list[Delta], Finished]:
    """What the worker says of these tokens."""
    (generate,) = generates(request, "r", "m", 1, 60.0)
    answer = Answer(generate, 0.0, SYNTAX)
    answer.start(EngineOutput("", prompt_tokens=7, finish_reason=None, finished=False), 0.0)
    deltas: list[Delta] = []
    text = ""
    for number, piece in enumerate([*pieces, ""]):
        text += piece
        last = number == len(pieces)
        output = EngineOutput(text, [] if last else [number], 7, min(number + 1, len(pieces)), None)
        output.new_text, output.finished, output.finish_reason = piece, last, finish if last else None
        if not last and request.sampling.logprobs is not None:
            output.logprobs = [TokenLogprob(number, piece, -0.5, ((number, piece, -0.5),), piece.encode())]
        deltas += answer.feed(output, 0.0)
        if answer.finished is not None:
            break
    assert answer.finished is not None
    return deltas, answer.finished


def read(path: str, groups: list[list[Delta]], end: Finished, *, logprobs: bool) -> tuple[Any, Any]:
    """The answer as one who waits for the whole reads it, and one who reads along."""
    dialect = DIALECTS[path]
    pieces: list[Piece] = joined([delta for group in groups for delta in group])
    request = asked(path, logprobs=logprobs, stream=False)
    body = json.loads(dialect.whole(request, IDENTITY, [Answered(tuple(pieces), end)], end.usage))
    writer = dialect.writer(asked(path, logprobs=logprobs, stream=True), IDENTITY)
    data = writer.start(end.usage)
    for group in groups:
        for piece in joined(group):
            data += writer.piece(0, piece)
    data += writer.finish(0, end) + writer.end(end.usage)
    said = spoken.whole(path, body), spoken.streamed(path, data.decode())
    if not logprobs:
        return said
    return (said[0], told(path, [body])), (said[1], told(path, spoken.events(path, data.decode())))


def told(path: str, found: list[Any]) -> list[Any]:
    """The log-probabilities of an answer, whole or in pieces."""
    if path == spoken.RESPONSES:
        items = [item for event in found[-1:] for item in event.get("response", event)["output"]]
        return [part["logprobs"] for item in items if item["type"] == "message" for part in item["content"]]
    parts = [c["logprobs"] for event in found for c in event["choices"] if c["logprobs"]]
    if path == spoken.CHAT:
        return [entry for part in parts for entry in part["content"]]
    return [[item for part in parts for item in part[name]] for name in ("tokens", "text_offset")]


@st.composite
def splits(draw: st.DrawFn) -> tuple[str, list[list[str]], list[int]]:
    """A text, two ways to cut it into tokens, and how many deltas a reader finds at a time."""
    text = "".join(draw(st.lists(PARTS, max_size=9)))
    ways = [list(text)]
    for _ in range(2):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
        ways.append([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    return text, ways, draw(st.lists(st.integers(1, 4), max_size=6))


def grouped(deltas: list[Delta], sizes: list[int]) -> list[list[Delta]]:
    groups = []
    for size in [*sizes, len(deltas) + 1]:
        groups.append(deltas[:size])
        deltas = deltas[size:]
    return groups


@pytest.mark.parametrize("path", spoken.ALL)
@given(split=splits(), finish=st.sampled_from(["stop", "length"]))
def test_any_pieces_are_the_same_answer(
    path: str, split: tuple[str, list[list[str]], list[int]], finish: str
):
    """FC-58, FC-60, FC-71. Token counts are those of the pieces, of course."""
    text, ways, sizes = split
    found = []
    for pieces in ([text], *ways):
        deltas, end = answered(asked(path, logprobs=False, stream=True), pieces, finish)
        whole, streamed = read(path, grouped(deltas, sizes), end, logprobs=False)
        assert whole == streamed
        found.append(whole[:4])
    assert found == found[:1] * len(found)


@pytest.mark.parametrize("path", list(_LOGPROBS))
@given(split=splits())
@example(split=("", [], []))
def test_log_probabilities_are_the_same_streamed_and_whole(
    path: str, split: tuple[str, list[list[str]], list[int]]
):
    text, ways, sizes = split
    for pieces in ([text], *ways):
        deltas, end = answered(asked(path, logprobs=True, stream=True), pieces, "stop")
        whole, streamed = read(path, grouped(deltas, sizes), end, logprobs=True)
        assert whole == streamed
