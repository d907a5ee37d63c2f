"""Ollama's requests and answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from gateway.dialects.ollama import OllamaRequest, parse_chat, parse_generate
from gateway.dialects.ollama_answer import Ollama
from gateway.pieces import Piece
from protocol.errors import ClusterError, ErrorCode
from protocol.values import ChatMessage, ToolCall
from tests.gateway.dialects.answers import IDENTITY, answers_split_twice, call, finished, streamed, whole

TURNS = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> OllamaRequest:
    return parse_chat(json.dumps({"model": "m", "messages": TURNS, **fields}).encode())


def generate(**fields: Any) -> OllamaRequest:
    return parse_generate(json.dumps({"model": "m", "prompt": "hi", **fields}).encode())


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def test_options_are_the_settings_of_the_draw():
    options = {
        "num_predict": 7,
        "temperature": 0.5,
        "repeat_penalty": 1.1,
        "stop": ["x"],
        "seed": 3,
        "num_ctx": 9,
    }
    found = chat(options=options, think=True, keep_alive="5m")
    assert (found.sampling.max_tokens, found.sampling.temperature) == (7, 0.5)
    assert (found.sampling.repetition_penalty, found.sampling.stop, found.seed) == (1.1, ("x",), 3)
    assert found.template_options == {"enable_thinking": True}
    assert found.stream
    assert chat(options={"num_predict": -1}, stream=False).sampling.max_tokens is None


def test_a_call_can_be_forced():
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = chat(tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert (found.tool_choice, found.parallel_tool_calls) == ("required", False)
    assert (chat(tools=tools).tool_choice, chat(tools=tools).parallel_tool_calls) == ("auto", True)


def test_results_belong_to_calls_in_their_order():
    function = {"name": "f", "arguments": {"a": 1}}
    made = {"role": "assistant", "tool_calls": [{"function": function}, {"function": {"name": "g"}}]}
    result = {"role": "tool", "content": "1", "tool_name": "f"}
    found = chat(messages=[*TURNS, made, result, {"role": "tool", "content": "2"}]).messages
    assert found[1].tool_calls == (
        ToolCall(id="messages[1].call0", name="f", arguments='{"a":1}'),
        ToolCall(id="messages[1].call1", name="g", arguments="{}"),
    )
    assert [turn.tool_call_id for turn in found[2:]] == ["messages[1].call0", "messages[1].call1"]


def test_prompts_go_through_the_template_unless_they_are_raw():
    assert generate(system="s").messages == (
        ChatMessage(role="system", content="s"),
        ChatMessage(role="user", content="hi"),
    )
    assert (generate(raw=True).prompts, generate(raw=True).messages) == (("hi",), ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "critic"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"format": "xml"}, "format"),
        ({"options": {"temperature": 9}}, "options.temperature"),
    ],
)
def test_faults_are_named_by_path(fields: dict[str, Any], param: str):
    with pytest.raises(ClusterError) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_lines_of_a_chat():
    pieces = [Piece(reasoning="hm", text="a"), Piece(tool_calls=(call(0, "f", '{"a":'), call(0, "", "1}")))]
    found = lines(streamed(Ollama(parse_chat), chat(), pieces, finished()))
    assert [line.get("message") for line in found] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "assistant", "content": ""},
    ]
    assert [line["done"] for line in found] == [False, False, False, True]
    assert (found[-1]["done_reason"], found[-1]["eval_count"]) == ("stop", 5)
    assert {(line["model"], line["created_at"]) for line in found} == {("alias", "2023-11-14T22:13:20Z")}


def test_a_generated_text():
    pieces = [Piece(reasoning="hm"), Piece(text="a")]
    found = whole(Ollama(parse_generate), generate(), pieces, finished("length"))
    assert (found["response"], found["thinking"], found["done_reason"]) == ("a", "hm", "length")


@given(answers_split_twice())
def test_any_split_and_the_whole_are_the_same_message(answers: tuple[list[Piece], list[Piece]]):
    dialect = Ollama(parse_chat)
    expected = whole(dialect, chat(), answers[0], finished())["message"]
    for pieces in answers:
        assert whole(dialect, chat(), pieces, finished())["message"] == expected
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for line in lines(streamed(dialect, chat(), pieces, finished())):
            for name in ("content", "thinking", "tool_calls"):
                if name in line["message"]:
                    added = line["message"][name]
                    message[name] = message[name] + added if name in message else added
        assert message == expected


def test_signs_of_life_and_failures_are_lines_too():
    writer = Ollama(parse_chat).writer(chat(), IDENTITY)
    assert lines(writer.keepalive())[0]["message"]["content"] == ""
    assert lines(writer.fail(ClusterError(ErrorCode.WORKER_LOST, "gone"))) == [{"error": "gone"}]
