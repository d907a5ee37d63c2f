"""Anthropic answers, whole and in events, as the official client reads them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given

from gateway.dialects.anthropic_answer import PING, Messages, StreamWriter
from gateway.dialects.base import Asked
from gateway.pieces import Piece
from protocol.errors import ClusterError, ErrorCode
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

DIALECT = Messages(drop_billing_line=True)
ASKED = Asked(model="alias", sampling=SamplingParams())


def folded(data: bytes) -> dict[str, Any]:
    """The message that a stream adds up to, as the official clients do it; checks the order of events."""
    message: dict[str, Any] = {}
    texts: dict[int, str] = {}
    open_block: int | None = None
    ended = False
    for event in events(data):
        assert not ended
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert open_block is None
                assert event["index"] == len(message["content"])
                open_block = event["index"]
                message["content"].append(event["content_block"])
                texts[open_block] = ""
            case "content_block_delta":
                assert event["index"] == open_block
                add(message["content"][event["index"]], texts, event)
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case "message_delta":
                assert open_block is None
                message |= event["delta"]
                message["usage"] |= event["usage"]
            case "message_stop":
                ended = True
            case kind:
                assert kind == "ping"
    assert ended
    return message


def add(block: dict[str, Any], texts: dict[int, str], event: dict[str, Any]) -> None:
    delta = event["delta"]
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case kind:
            assert kind == "input_json_delta"
            texts[event["index"]] += delta["partial_json"]
            with contextlib.suppress(ValueError):
                block["input"] = json.loads(texts[event["index"]])


def test_a_stream_has_the_events_in_their_order():
    pieces = [
        Piece(reasoning="hm"),
        Piece(text="a"),
        Piece(text="b"),
        Piece(tool_calls=(call(0, "f", "{}"),)),
    ]
    found = events(streamed(DIALECT, ASKED, pieces, finished("tool_calls")))
    assert [event["type"] for event in found] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["usage"]["input_tokens"] == 4
    assert found[-2]["usage"] == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 5,
    }


def test_a_whole_answer():
    call_piece = Piece(text="x", tool_calls=(call(0, "f", '{"a": 1}'), call(1, "g")))
    assert whole(DIALECT, ASKED, [Piece(reasoning="hm"), call_piece], finished("tool_calls")) == {
        "id": "msg_0123456789abcdef",
        "type": "message",
        "role": "assistant",
        "model": "alias",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c3R1ZGlvZmxlZXQ="},
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "toolu_0123456789abcdef00", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "toolu_0123456789abcdef01", "name": "g", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 5,
        },
    }


def test_an_empty_answer_has_one_empty_text():
    assert whole(DIALECT, ASKED, [], finished())["content"] == [{"type": "text", "text": ""}]
    assert folded(streamed(DIALECT, ASKED, [], finished()))["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("reason", "matched", "stop_reason", "stop_sequence"),
    [
        ("stop", None, "end_turn", None),
        ("stop", "END", "stop_sequence", "END"),
        ("stop", 2, "end_turn", None),
        ("length", None, "max_tokens", None),
        ("tool_calls", None, "tool_use", None),
    ],
)
def test_stop_reasons(reason: str, matched: Any, stop_reason: str, stop_sequence: str | None):
    """FC-60: the stop string that ended an answer is named."""
    found = whole(DIALECT, ASKED, [Piece(text="a")], finished(reason, matched))
    assert (found["stop_reason"], found["stop_sequence"]) == (stop_reason, stop_sequence)


@pytest.mark.parametrize("arguments", ['{"a', "[1]", '"x"', "NaN", "{" * 100_000])
def test_fc_68_arguments_that_are_no_object_are_handed_over_as_they_stand(arguments: str):
    found = whole(DIALECT, ASKED, [Piece(tool_calls=(call(0, "f", arguments),))], finished("length"))
    assert found["content"][0]["input"] == {"arguments": arguments}
    parts = [call(0, "f"), *(call(0, "", part) for part in (*arguments[:9], arguments[9:]))]
    pieces = [Piece(tool_calls=(part,)) for part in parts]
    assert folded(streamed(DIALECT, ASKED, pieces, finished("length"))) == found


@given(answers_split_twice())
def test_any_split_and_the_whole_are_the_same_message(answers: tuple[list[Piece], list[Piece]]):
    """FC-71, FC-58: each character in exactly one block, at every split."""
    first, second = answers
    expected = whole(DIALECT, ASKED, first, finished())
    assert whole(DIALECT, ASKED, second, finished()) == expected
    assert folded(streamed(DIALECT, ASKED, first, finished())) == expected
    assert folded(streamed(DIALECT, ASKED, second, finished())) == expected


def test_a_failure_in_mid_stream_is_an_event_in_the_dialects_own_shape():
    writer = StreamWriter(IDENTITY)
    writer.start(USAGE)
    (event,) = events(writer.fail(ClusterError(ErrorCode.WORKER_LOST, "gone")))
    assert event == {"type": "error", "error": {"type": "api_error", "message": "gone"}}
    assert writer.keepalive() == PING
