"""The bytes that clients read: one body, or chunks."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.dialects.base import Answered
from gateway.dialects.chunk_usage import UsageWanted
from gateway.dialects.openai_chat import ChatRequest, parse
from gateway.dialects.openai_chat_answer import ChatCompletions, logprobs_object
from gateway.pieces import Piece
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import TokenLogprob
from protocol.values import SamplingParams
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

DIALECT = ChatCompletions()
ASKED = ChatRequest(model="alias", sampling=SamplingParams())
WITH_USAGE = ChatRequest(model="alias", sampling=SamplingParams(), usage=UsageWanted(last=True))


def test_a_whole_body_is_what_the_official_client_expects():
    pieces = [Piece(reasoning="thought", text="text")]
    found = ChatCompletion.model_validate(whole(DIALECT, ASKED, pieces, finished("length")))
    assert found.choices[0].message.content == "text"
    assert found.choices[0].message.model_extra == {"reasoning_content": "thought", "reasoning": "thought"}
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.total_tokens, found.model) == (12, "alias")
    raw = whole(DIALECT, ASKED, [], finished())
    assert raw["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert raw["choices"][0]["logprobs"] is None


def test_tool_calls_of_a_whole_body():
    pieces = [
        Piece(tool_calls=(call(0, "f", '{"a":'),)),
        Piece(tool_calls=(call(0, "", " 1}"), call(1, "g"))),
    ]
    raw = whole(DIALECT, ASKED, pieces, finished("tool_calls"))
    ChatCompletion.model_validate(raw)
    message = raw["choices"][0]["message"]
    assert message["content"] is None
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    assert raw["choices"][0]["finish_reason"] == "tool_calls"


def test_chunks_are_what_the_official_client_expects():
    pieces = [Piece(reasoning="hm", text="a"), Piece(tool_calls=(call(0, "f"), call(0, "", "{}")))]
    data = streamed(DIALECT, WITH_USAGE, pieces, finished())
    chunks = events(data)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    function = {"name": "f", "arguments": ""}
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "a"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_0123456789abcdef0000", "type": "function", "function": function}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 5 + ["stop"]
    assert all(c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert data.endswith(b"data: [DONE]\n\n")


def test_fc_75_without_include_usage_no_chunk_speaks_of_it():
    data = streamed(DIALECT, ASKED, [Piece(text="a")], finished())
    assert b"usage" not in data
    assert all(event["choices"] for event in events(data))


def test_several_answers_have_an_index_each():
    asked = ChatRequest(model="alias", sampling=SamplingParams(), n=2)
    writer = DIALECT.writer(asked, IDENTITY)
    data = writer.start(USAGE) + writer.piece(1, Piece(text="y")) + writer.piece(0, Piece(text="x"))
    data += writer.finish(1, finished()) + writer.finish(0, finished()) + writer.end(USAGE)
    choices = [chunk["choices"][0] for chunk in events(data)]
    assert [c["index"] for c in choices if "role" in c["delta"]] == [0, 1]
    assert [(c["index"], c["delta"]["content"]) for c in choices if c["delta"].get("content")] == [
        (1, "y"),
        (0, "x"),
    ]
    assert [c["index"] for c in choices if c["finish_reason"]] == [1, 0]
    answers = [Answered((Piece(text=text),), finished()) for text in ("x", "y")]
    body = json.loads(DIALECT.whole(asked, IDENTITY, answers, USAGE))
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(0, "x"), (1, "y")]


def test_logprobs_of_each_token_its_bytes_and_its_alternatives():
    logprob = TokenLogprob(1, "é", -0.5, ((1, "é", -0.5), (2, "b", float("-inf"))))
    expected = {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                    {"token": "b", "logprob": -9999.0, "bytes": [98]},
                ],
            }
        ],
        "refusal": None,
    }
    asked = msgspec.structs.replace(ASKED, sampling=SamplingParams(logprobs=2))
    for text in ("é", ""):  # also of a token whose text is held back
        pieces = [Piece(text=text, logprobs=(logprob,))]
        raw = whole(DIALECT, asked, pieces, finished())
        ChatCompletion.model_validate(raw)
        assert raw["choices"][0]["logprobs"] == expected
        found = [c["choices"][0]["logprobs"] for c in events(streamed(DIALECT, ASKED, pieces, finished()))]
        assert [item for item in found if item] == [expected]


def test_bytes_are_those_of_the_token_and_not_of_what_stands_for_them():
    half = TokenLogprob(
        1, "\ufffd", -0.5, ((1, "\ufffd", -0.5), (2, "<|end|>", -1.0)), b"\xf0\x9f", (b"\xf0\x9f", b"")
    )
    unknown = TokenLogprob(3, "\ufffd", -0.5, ((3, "\ufffd", -0.5),))
    found = logprobs_object([half, unknown])["content"]
    assert [entry["bytes"] for entry in found] == [[0xF0, 0x9F], None]
    assert [top["bytes"] for top in found[0]["top_logprobs"]] == [[0xF0, 0x9F], []]
    assert [top["bytes"] for top in found[1]["top_logprobs"]] == [None]


def test_an_unknown_finish_reason_is_not_shown():
    assert b'"finish_reason":"stop"' in DIALECT.writer(ASKED, IDENTITY).finish(0, finished("abort"))


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_any_text_comes_through(text: str):
    (chunk,) = events(DIALECT.writer(ASKED, IDENTITY).piece(0, Piece(text=text)))
    assert chunk["choices"][0]["delta"]["content"] == text


@given(answers_split_twice())
def test_any_split_and_the_whole_are_the_same_message(answers: tuple[list[Piece], list[Piece]]):
    """FC-71: each character in exactly one channel, at every split."""
    expected = whole(DIALECT, ASKED, answers[0], finished())["choices"][0]["message"]
    for pieces in answers:
        assert whole(DIALECT, ASKED, pieces, finished())["choices"][0]["message"] == expected
        assert folded(streamed(DIALECT, ASKED, pieces, finished())) == expected


def folded(data: bytes) -> dict[str, Any]:
    """The message that a stream adds up to, as the official clients do it."""
    message: dict[str, Any] = {"content": "", "refusal": None}
    calls: list[dict[str, Any]] = []
    for event in events(data):
        delta = event["choices"][0]["delta"]
        for name in ("role", "content", "reasoning_content", "reasoning"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({key: part[key] for key in ("id", "type", "function")})
            else:
                assert set(part) == {"index", "function"}
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    for made in calls:
        made["function"]["arguments"] = made["function"]["arguments"] or "{}"
    return message | ({"content": message["content"] or None, "tool_calls": calls} if calls else {})


def test_in_long_silence_a_chunk_without_content_is_sent_now_and_then():
    """Clients that count events, not bytes, would give up."""
    writer = DIALECT.writer(ASKED, IDENTITY)
    writer.start(USAGE)
    signs = b"".join(writer.keepalive() for _ in range(10))
    assert signs.count(b": keepalive\n") == 8
    assert [event["choices"][0]["delta"] for event in events(signs)] == [{}, {}]


def test_a_long_wait_for_a_worker_is_a_silence_too_and_the_first_chunk_has_the_role():
    writer = DIALECT.writer(ASKED, IDENTITY)
    signs = b"".join(writer.keepalive() for _ in range(10)) + writer.start(USAGE)
    deltas = [event["choices"][0]["delta"] for event in events(signs)]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("tier", [None, "auto", "priority"])
def test_the_service_tier_is_told_where_it_was_asked_for(tier: str | None):
    asked = parse(json.dumps({"messages": [{"role": "user"}], "service_tier": tier}).encode())
    told = whole(DIALECT, asked, [Piece(text="a")], finished())
    chunks = events(streamed(DIALECT, asked, [Piece(text="a")], finished()))
    for found in (told, *chunks):
        assert found.get("service_tier") == (tier and "default")


def test_a_late_error_is_one_event_with_all_four_keys():
    (event,) = events(
        DIALECT.writer(ASKED, IDENTITY).fail(ClusterError(ErrorCode.WORKER_LOST, "gone\nfor good"))
    )
    assert event == {
        "error": {"message": "gone\nfor good", "type": "server_error", "param": None, "code": "worker_lost"}
    }
