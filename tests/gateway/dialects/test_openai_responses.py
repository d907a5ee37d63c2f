"""Requests for responses: what is taken, what is left out, what is refused and under which path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.openai_responses import ResponseRequest, parse
from gateway.dialects.response_store import Kept, ResponseStore
from protocol.errors import ClusterError
from protocol.values import ChatMessage, ToolCall

TEXT = [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]


def asked(known: ResponseStore | None = None, **fields: Any) -> ResponseRequest:
    return parse(json.dumps({"model": "m", "input": "hi", **fields}).encode(), known or ResponseStore())


def test_the_plain_request():
    found = asked(instructions="be brief", max_output_tokens=3, temperature=0)
    assert [(turn.role, turn.content) for turn in found.messages] == [("system", "be brief"), ("user", "hi")]
    assert (found.sampling.max_tokens, found.sampling.temperature, found.stream) == (3, 0, False)
    assert found.store


def test_a_turn_of_a_coding_agent_is_taken():
    """FC-66, and the kinds of tools and items that only the vendor's own servers know."""
    found = asked(
        instructions="You are an agent.",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
            {"role": "user", "content": "go"},
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "x",
            },
            {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"x":1}'},
            {"type": "function_call", "call_id": "c2", "name": "find", "namespace": "docs", "arguments": ""},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "ok"}],
            },
            {"type": "function_call_output", "call_id": "c2", "output": "found"},
            {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": ""},
            {"type": "additional_tools", "tools": []},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        ],
        tools=[
            {
                "type": "function",
                "name": "shell",
                "description": "d",
                "parameters": {"a": 1},
                "strict": False,
            },
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
            {"type": "namespace", "name": "docs", "tools": [{"type": "function", "name": "find"}]},
            {"type": "web_search"},
            {"type": "local_shell"},
            {"type": "image_generation", "output_format": "png"},
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        text={"verbosity": "low"},
    )
    shell = ToolCall(id="c1", name="shell", arguments='{"x":1}')
    docs = ToolCall(id="c2", name="docs__find", arguments="{}")
    patch = ToolCall(id="c3", name="apply_patch", arguments='{"input":"*** Begin"}')
    assert found.messages == (
        ChatMessage(role="system", content="You are an agent."),
        ChatMessage(role="system", content="rules"),
        ChatMessage(role="user", content="go"),
        ChatMessage(role="assistant", reasoning="hm", tool_calls=(shell, docs)),
        ChatMessage(role="tool", content="ok", tool_call_id="c1"),
        ChatMessage(role="tool", content="found", tool_call_id="c2"),
        ChatMessage(role="assistant", tool_calls=(patch,)),
        ChatMessage(role="tool", tool_call_id="c3"),
    )
    assert [tool.name for tool in found.tools] == ["shell", "apply_patch", "docs__find"]
    assert found.template_options == {"reasoning_effort": "medium"}
    assert not found.store
    assert found.stream
    assert found.echoed["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_a_probe_without_input_is_a_request():
    nothing: tuple[Any, ...] = ("", [], None)
    for empty in nothing:
        assert [turn.role for turn in asked(input=empty, max_output_tokens=1).messages] == ["user"]


def test_what_the_model_did_in_a_row_is_one_turn():
    found = asked(
        input=[
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "message", "role": "assistant", "content": "b"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        ]
    )
    call = ToolCall(id="c", name="f", arguments="{}")
    assert found.messages == (ChatMessage(role="assistant", content="a\nb", tool_calls=(call,)),)


def test_a_request_goes_on_from_a_response_that_is_kept():
    store = ResponseStore()
    before = (ChatMessage(role="user", content="a"), ChatMessage(role="assistant", content="b"))
    store.keep("resp_1", Kept(before, b"{}"))
    found = asked(store, previous_response_id="resp_1", instructions="new")
    assert [turn.content for turn in found.messages] == ["new", "a", "b", "hi"]
    assert [turn.content for turn in found.turns] == ["a", "b", "hi"]


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, "named:f"),
        ({"type": "web_search_preview"}, "auto"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "auto"),
    ],
)
def test_tool_choices(choice: Any, found: str):
    assert asked(tools=[{"type": "function", "name": "f"}], tool_choice=choice).tool_choice == found


def test_some_of_the_tools_may_or_must_be_called():
    declared = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    listed = [{"type": "custom", "name": "g"}, {"type": "web_search"}]
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": listed}
        found = asked(tools=declared, tool_choice=choice)
        assert ([tool.name for tool in found.tools], found.tool_choice) == (["g"], mode)
        assert len(found.declared) == 2


def test_an_item_of_a_kept_answer_stands_for_itself():
    store = ResponseStore()
    output = [
        {"id": "rs_abc00", "type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"id": "msg_abc01", "type": "message", "role": "assistant", "content": TEXT},
        {"id": "fc_abc102", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    store.keep("resp_abc", Kept((), json.dumps({"output": output}).encode()))
    items = [{"type": "item_reference", "id": "rs_abc00"}, {"id": "msg_abc01"}, {"id": "fc_abc102"}]
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    found = asked(store, input=[{"role": "user", "content": "hi"}, *items, result]).turns
    calls = (ToolCall(id="c", name="f", arguments="{}"),)
    assert found[1] == ChatMessage(role="assistant", content="a", reasoning="hm", tool_calls=calls)
    assert [turn.role for turn in found] == ["user", "assistant", "tool"]
    for unknown in ("msg_abc02", "msg_abd01", "", "msg", "x_y"):
        with pytest.raises(ClusterError, match="does not keep"):
            asked(store, input=[{"type": "item_reference", "id": unknown}])


@pytest.mark.parametrize(
    ("effort", "options"),
    [
        ("none", {"enable_thinking": False}),
        ("xhigh", {"reasoning_effort": "xhigh"}),
        ("of next year", {}),
        (None, {}),
    ],
)
def test_efforts(effort: str | None, options: dict[str, Any]):
    assert asked(reasoning={"effort": effort}).template_options == options


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"input": 3}, "input", "invalid_type"),
        ({"input": [3]}, "input[0]", "invalid_type"),
        ({"input": [{}]}, "input[0].type", "missing_required_parameter"),
        ({"input": [{"type": "message"}]}, "input[0].role", "missing_required_parameter"),
        ({"input": [{"role": "critic"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", "invalid_type"),
        ({"input": [{"type": "function_call"}]}, "input[0].name", "missing_required_parameter"),
        ({"input": [{"type": "item_reference", "id": "msg_x00"}]}, "input[0].id", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": 3}]}, "input[0].id", "invalid_type"),
        ({"previous_response_id": "x"}, "previous_response_id", "previous_response_not_found"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"tools": [3]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "x"}, "tool_choice", "invalid_value"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
            "tool_choice.mode",
            "invalid_value",
        ),
        ({"tool_choice": {"type": "allowed_tools", "tools": [1]}}, "tool_choice.tools[0]", "invalid_type"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", "invalid_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing_required_parameter"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type", "invalid_value"),
        ({"reasoning": 3}, "reasoning", "invalid_type"),
    ],
)
def test_faults_are_named_by_path(fields: dict[str, Any], param: str, reason: str):
    with pytest.raises(ClusterError) as caught:
        asked(**fields)
    assert (caught.value.param, caught.value.reason) == (param, reason)
