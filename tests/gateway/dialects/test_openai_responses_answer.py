"""Responses, whole and in events, as the official client reads them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.dialects.openai_responses import ResponseRequest
from gateway.dialects.openai_responses_answer import Responses
from gateway.pieces import Piece, joined
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Delta, TokenLogprob
from protocol.values import Timings
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

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [
    {"type": "function", "name": "f", "parameters": {}, "strict": False},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "docs", "description": "", "tools": [{"type": "function", "name": "find"}]},
]


def asked(dialect: Responses | None = None, **fields: Any) -> ResponseRequest:
    return (dialect or Responses()).parse(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def scored(text: str, channel: str = "text") -> Delta:
    """One token, and how likely it was."""
    item = TokenLogprob(1, text or "…", -0.5, ((1, text or "…", -0.5), (2, "�", float("-inf"))))
    said = {channel: text} if text else {}
    return Delta("r", 0, completion_tokens=1, logprobs=(item,), **said)  # type: ignore[arg-type]


INCLUDED: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@given(st.data())
def test_logprobs_are_of_the_text_and_the_same_in_events_and_whole(data: st.DataObject):
    """Thoughts and calls have none; a token of which nothing was shown yet belongs to what comes next."""
    deltas = [scored(""), scored("hm", "reasoning"), scored(""), scored("a"), scored(""), scored("b")]
    deltas += [scored(""), Delta("r", 0, tool_calls=(call(0, "f", "{}"),), logprobs=scored("x").logprobs)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(deltas) - 1))))
    runs = [deltas[i:j] for i, j in itertools.pairwise([0, *cuts, len(deltas)])]
    pieces = [piece for run in runs for piece in joined(run)]
    request = asked(tools=TOOLS[:1], **INCLUDED)
    (_, text, _) = whole(Responses(), request, pieces, finished())["output"]
    tokens = [entry["token"] for entry in text["content"][0]["logprobs"]]
    assert tokens == ["…", "a", "…", "b"]
    found = events(streamed(Responses(), request, pieces, finished()))
    for event in found:
        EVENTS.validate_python(event)
    told = [event for event in found if event["type"].startswith("response.output_text.")]
    assert [entry["token"] for event in told[:-1] for entry in event["logprobs"]] == tokens
    assert told[-1]["logprobs"] == text["content"][0]["logprobs"]
    assert Response.model_validate(whole(Responses(), request, pieces, finished())).top_logprobs == 2


def test_logprobs_come_only_where_they_are_included():
    assert asked(top_logprobs=3).sampling.logprobs is None
    assert asked(include=["reasoning.encrypted_content"]).sampling.logprobs is None
    assert asked(include=INCLUDED["include"]).sampling.logprobs == 0
    for wrong in ({"top_logprobs": 21}, {"include": "x"}):
        with pytest.raises(ClusterError):
            asked(**wrong)


def test_the_events_of_thought_text_and_call_are_what_the_official_client_expects():
    pieces = [Piece(reasoning="hm"), Piece(text="a 100%"), Piece(tool_calls=(call(0, "f", '{"a":'),))]
    pieces += [Piece(tool_calls=(call(0, "", " 1}"),))]
    found = events(streamed(Responses(), asked(tools=TOOLS[:1]), pieces, finished("tool_calls")))
    for event in found:
        EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    items = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    response = Response.model_validate(found[-1]["response"])
    assert found[-1]["response"]["output"] == items
    assert [item["id"][:3] for item in items] == ["rs_", "msg", "fc_"]
    assert response.output_text == "a 100%"
    assert items[2]["arguments"] == '{"a": 1}'
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.total_tokens) == (7, 12)


def test_fields_that_open_responses_requires_are_there():
    """Of its ResponseResource, beside those that the vendor's client requires."""
    request = asked(prompt_cache_key="k", safety_identifier="me", presence_penalty=0.5, max_tool_calls=3)
    ended = replace(finished(), timings=Timings(queued_s=100.0, prefill_s=1.5, decode_s=2.0))
    found = whole(Responses(), request, [Piece(text="a")], ended)
    assert found["completed_at"] == found["created_at"] + 4
    assert (found["prompt_cache_key"], found["safety_identifier"], found["service_tier"]) == (
        "k",
        "me",
        "default",
    )
    assert (found["presence_penalty"], found["frequency_penalty"], found["max_tool_calls"]) == (
        0.5,
        0.0,
        None,
    )
    first = events(streamed(Responses(), asked(), [Piece(text="a")], finished()))[0]["response"]
    assert (first["completed_at"], first["prompt_cache_key"], first["safety_identifier"]) == (
        None,
        None,
        None,
    )


def test_calls_of_custom_tools_and_of_groups_are_told_as_the_client_declared_them():
    calls = (call(0, "patch", '{"input": "*** Begin"}'), call(1, "docs__find", ""), call(2, "patch", "raw"))
    pieces = [Piece(tool_calls=calls)]
    data = streamed(Responses(), asked(tools=TOOLS), pieces, finished("tool_calls"))
    for event in events(data):
        EVENTS.validate_python(event)
    patch, find, raw = whole(Responses(), asked(tools=TOOLS), pieces, finished("tool_calls"))["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "*** Begin")
    assert (find["name"], find["namespace"], find["arguments"]) == ("find", "docs", "{}")
    assert raw["input"] == "raw"


def test_the_budget_ends_it_incomplete():
    found = whole(Responses(), asked(), [Piece(text="a")], finished("length"))
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["completed_at"] is None
    assert found["output"][0]["status"] == "incomplete"
    last = events(streamed(Responses(), asked(), [Piece(text="a")], finished("length")))[-1]
    assert last["type"] == "response.incomplete"


def test_a_response_is_kept_unless_the_client_forbids_it():
    dialect = Responses()
    found = whole(dialect, asked(dialect), [Piece(text="a")], finished())
    assert json.loads(dialect.store.get(found["id"]).body) == found  # type: ignore[union-attr]
    later = asked(dialect, previous_response_id=found["id"], input="more")
    assert [turn.content for turn in later.messages] == ["hi", "a", "more"]
    whole(dialect, asked(dialect, store=False), [], finished())
    assert dialect.store.get(found["id"]) is not None
    other = Responses()
    streamed(other, asked(other, store=False), [], finished())
    assert other.store.get(found["id"]) is None


@given(answers_split_twice())
def test_any_split_and_the_whole_are_the_same_response(answers: tuple[list[Piece], list[Piece]]):
    """FC-71: each character in exactly one item, at every split."""
    expected = whole(Responses(), asked(), answers[0], finished())
    for pieces in answers:
        assert whole(Responses(), asked(), pieces, finished()) == expected
        found = events(streamed(Responses(), asked(), pieces, finished()))
        assert found[-1]["response"] == expected
        assert deltas(found) == [text_of(item) for item in expected["output"]]


def deltas(found: list[Any]) -> list[str]:
    texts: list[str] = []
    for event in found:
        if event["type"] == "response.output_item.added":
            texts.append("")
        elif event["type"].endswith(".delta"):
            texts[event["output_index"]] += event["delta"]
        elif event["type"] == "response.function_call_arguments.done":
            texts[event["output_index"]] = texts[event["output_index"]] or "{}"
    return texts


def text_of(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return str(item["content"][0]["text"])


@pytest.mark.parametrize("code", [ErrorCode.WORKER_LOST, ErrorCode.OVERLOADED])
def test_a_failure_in_mid_stream_is_a_failed_response(code: ErrorCode):
    writer = Responses().writer(asked(), IDENTITY)
    writer.start(USAGE)
    (event,) = events(writer.fail(ClusterError(code, "gone")))
    assert event["type"] == "response.failed"
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"]["message"] == "gone"


def test_in_long_silence_an_event_is_repeated_now_and_then():
    """Clients that count events, not bytes, would give up."""
    writer = Responses().writer(asked(), IDENTITY)
    writer.start(USAGE)
    signs = [writer.keepalive() for _ in range(6)]
    assert [sign.startswith(b"event: response.in_progress") for sign in signs].count(True) == 2
    writer.piece(0, Piece(text="a"))
    assert writer.keepalive() == b": keepalive\n"


def test_a_long_wait_for_a_worker_is_a_silence_too():
    writer = Responses().writer(asked(), IDENTITY)
    signs = b"".join(writer.keepalive() for _ in range(6)) + writer.start(USAGE)
    found = events(signs)
    kinds = ["response.created", "response.in_progress", "response.in_progress"]
    assert [event["type"] for event in found] == kinds
    assert [event["sequence_number"] for event in found] == [0, 1, 2]
    assert signs.count(b": keepalive\n") == 4
