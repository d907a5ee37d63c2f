"""Completions: several prompts and answers at once, as the official client reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from openai.types import Completion

from gateway.dialects.base import Answered
from gateway.dialects.openai_completions import CompletionRequest, Completions, parse, shown
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import TokenLogprob
from tests.gateway.dialects.answers import (
    IDENTITY,
    USAGE,
    answers_split_twice,
    call,
    events,
    finished,
    streamed,
    whole,
)

DIALECT = Completions()


def asked(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"model": "m", "prompt": "once", **fields}).encode())


def text_of(data: bytes, index: int = 0) -> str:
    choices = [choice for event in events(data) for choice in event["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a", [3]], ("a", (3,))),
    ],
)
def test_prompts_are_texts_or_token_ids(prompt: Any, prompts: Any):
    assert asked(prompt=prompt).prompts == prompts


def test_sixteen_tokens_unless_told_otherwise():
    assert asked().sampling.max_tokens == 16
    assert asked(max_tokens=3, logprobs=2).sampling.max_tokens == 3
    assert asked(logprobs=2).sampling.logprobs == 2


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
        ({"prompt": 3}, "prompt", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, True]}, "prompt[1]", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": [2**63]}, "prompt[0]", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 65, "prompt": ["a", "b"]}, "n", "invalid_value"),
        ({"n": 2, "best_of": 1}, "best_of", "invalid_value"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"echo": True, "max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ],
)
def test_faults_are_named_by_path(fields: dict[str, Any], param: str, reason: str):
    with pytest.raises(ClusterError) as caught:
        asked(**fields)
    assert (caught.value.param, caught.value.reason) == (param, reason)


def test_a_whole_body_of_several_answers():
    request = asked(prompt=["a", "b"], n=2, echo=True)
    answers = [Answered((Piece(text=str(index)),), finished("length")) for index in range(4)]
    found = Completion.model_validate_json(DIALECT.whole(request, IDENTITY, answers, USAGE))
    assert [(c.index, c.text) for c in found.choices] == [(0, "a0"), (1, "a1"), (2, "b2"), (3, "b3")]
    assert found.choices[0].finish_reason == "length"
    assert (found.object, found.id) == ("text_completion", "cmpl-0123456789abcdef")
    assert found.usage is not None
    assert found.usage.total_tokens == 12


def test_a_stream_of_several_answers():
    request = asked(prompt=["a", "b"], echo=True, stream=True, stream_options={"include_usage": True})
    writer = DIALECT.writer(request, IDENTITY)
    data = writer.start(USAGE) + writer.piece(1, Piece(text="y")) + writer.piece(0, Piece(text="x"))
    data += writer.finish(0, finished()) + writer.finish(1, finished("tool_calls")) + writer.end(USAGE)
    assert data.endswith(b"data: [DONE]\n\n")
    chunks = events(data)
    assert (text_of(data, 0), text_of(data, 1)) == ("ax", "by")
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"]["total_tokens"] == 12
    assert chunks[-1]["choices"] == []
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert {tuple(choice) for choice in choices} == {("index", "text", "logprobs", "finish_reason")}
    reasons = [(c["index"], c["finish_reason"]) for c in choices if c["finish_reason"]]
    assert reasons == [(0, "stop"), (1, "stop")]


def test_fc_75_usage_comes_in_a_chunk_of_its_own_and_only_when_asked_for():
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}):
        data = streamed(DIALECT, asked(stream=True, stream_options=options), [Piece(text="a")], finished())
        assert b"usage" not in data
        assert all(event["choices"] for event in events(data))


def test_logprobs_have_the_offset_of_each_token():
    first = TokenLogprob(1, "a", -0.5, ((1, "a", -0.5), (2, "b", float("-inf"))))
    second = TokenLogprob(2, "👋b", float("-inf"))
    expected = {
        "tokens": ["a", "👋b"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"a": -0.5, "b": -9999.0}, {}],
        "text_offset": [0, 1],
    }
    pieces = [Piece(text="a", logprobs=(first,)), Piece(text="👋b", logprobs=(second,))]
    request = asked(logprobs=2)
    assert whole(DIALECT, request, pieces, finished())["choices"][0]["logprobs"] == expected
    found = [
        c["logprobs"] for e in events(streamed(DIALECT, request, pieces, finished())) for c in e["choices"]
    ]
    assert [part["text_offset"] for part in found if part] == [[0], [1]]


FIRST = TokenLogprob(5, "on", 0.0, ((5, "on", 0.0),))
SECOND = TokenLogprob(6, "ce", -2.0, ((7, "e", -1.0), (6, "ce", -2.0)))
SCORED = Piece(prompt_text="once", prompt_logprobs=(FIRST, SECOND))
"""A prompt as a worker gives it back."""


@pytest.mark.parametrize("fields", [{"logprobs": 1}, {"prompt": [5, 6]}, {"max_tokens": 0}])
def test_only_a_worker_can_give_back_what_is_more_than_the_text(fields: dict[str, Any]):
    request = asked(echo=True, **fields)
    assert (request.echo, request.begins_with_prompt) == (True, True)
    assert request.prompt_only == ("max_tokens" in fields)
    assert not asked(**{**fields, "max_tokens": 1}).echo
    plain = asked(echo=True)
    assert (plain.echo, plain.begins_with_prompt) == (False, True)


@pytest.mark.parametrize("prompt", ["once", [5, 6]])
def test_log_probabilities_of_the_prompt_come_before_those_of_the_answer(prompt: Any):
    request = asked(prompt=prompt, echo=True, logprobs=2, stream=True)
    later = TokenLogprob(9, "!", -0.5, ((9, "!", -0.5),))
    pieces = [SCORED, Piece(text="!", logprobs=(later,))]
    found = whole(DIALECT, request, pieces, finished())["choices"][0]
    assert found["text"] == "once!"
    assert found["logprobs"] == {
        "tokens": ["on", "ce", "!"],
        "token_logprobs": [None, -2.0, -0.5],
        "top_logprobs": [None, {"e": -1.0, "ce": -2.0}, {"!": -0.5}],
        "text_offset": [0, 2, 4],
    }
    choices = [c for e in events(streamed(DIALECT, request, pieces, finished())) for c in e["choices"]]
    assert [choice["text"] for choice in choices] == ["once", "!", ""]
    for name, values in found["logprobs"].items():
        assert [v for choice in choices if choice["logprobs"] for v in choice["logprobs"][name]] == values


def test_a_prompt_can_be_scored_without_any_answer():
    request = asked(prompt=[5, 6], echo=True, logprobs=0, max_tokens=0)
    found = whole(DIALECT, request, [SCORED], finished("length"))["choices"][0]
    assert (found["text"], found["finish_reason"]) == ("once", "length")
    assert len(found["logprobs"]["tokens"]) == 2


@given(answers_split_twice())
def test_any_split_and_the_whole_are_the_same_text(answers: tuple[list[Piece], list[Piece]]):
    for pieces in answers:
        expected = "".join(map(shown, answers[0]))
        assert whole(DIALECT, asked(), pieces, finished())["choices"][0]["text"] == expected
        assert text_of(streamed(DIALECT, asked(), pieces, finished())) == expected


def test_what_a_parser_took_for_something_else_is_shown_as_text():
    assert shown(Piece(reasoning="r", text="t", tool_calls=(call(0, "f", "{}"),))) == "rtf{}"
