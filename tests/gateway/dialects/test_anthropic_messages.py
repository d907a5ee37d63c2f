"""Anthropic requests: what is taken, what is left out, what is refused and under which path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.anthropic_messages import parse
from gateway.dialects.base import Asked
from gateway.sight import unseen
from protocol.errors import ClusterError
from protocol.values import ChatMessage, ToolCall, ToolSpec

BILLING = "x-anthropic-billing-header: cc_version=9.9.9.abc; cc_entrypoint=cli; cch="


def asked(**fields: Any) -> Asked:
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse(json.dumps(body).encode())


def turns(*messages: Any, **fields: Any) -> tuple[ChatMessage, ...]:
    return asked(messages=list(messages), **fields).messages


def refusal(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ClusterError) as caught:
        asked(**fields)
    return caught.value.param, caught.value.reason


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def result(call_id: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {"x": 1}}


def test_the_plain_request():
    found = asked(system="be brief", temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["a", "", "a"])
    assert found.messages == (
        ChatMessage(role="system", content="be brief"),
        ChatMessage(role="user", content="hi"),
    )
    sampling = found.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0.5, 0.9)
    assert (sampling.top_k, sampling.stop, found.stream) == (4, ("a",), False)


def test_what_a_coding_agent_sends_is_taken():
    """FC-66: roles, fields and kinds of blocks that a new release of a client brings along."""
    found = asked(
        system=[
            {"type": "text", "text": BILLING + "36ee5;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            user({"type": "text", "text": "hello", "cache_control": {"type": "ephemeral", "ttl": "1h"}}),
            {"role": "system", "content": "the date changed"},
            user({"type": "some_new_block", "x": 1}, {"type": "text", "text": "go"}),
        ],
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
        output_config={"effort": "medium"},
        tools=[
            {"name": "Read", "description": "d", "input_schema": {"type": "object"}, "strict": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        tool_choice={"type": "auto", "disable_parallel_tool_use": False},
        stream=True,
    )
    assert [(turn.role, turn.content) for turn in found.messages] == [
        ("system", "You are an agent."),
        ("user", "hello"),
        ("system", "the date changed"),
        ("user", "go"),
    ]
    assert found.tools == (ToolSpec(name="Read", description="d", parameters={"type": "object"}),)
    assert found.template_options == {"enable_thinking": True}
    assert found.stream


def test_fc_16_the_nonce_of_a_billing_line_is_dropped_from_the_first_system_block_only():
    blocks = [{"type": "text", "text": BILLING + "36ee5;"}, {"type": "text", "text": "stable"}]
    later = [{"type": "text", "text": BILLING + "0aaa9;"}, {"type": "text", "text": "stable"}]
    assert asked(system=blocks).messages == asked(system=later).messages
    assert asked(system=BILLING + "1;\nstable").messages[0].content == "stable"
    assert asked(system=BILLING + "1;").messages[0].role == "user"
    behind = asked(system="stable\n" + BILLING + "1;").messages[0].content
    assert behind == "stable\n" + BILLING + "1;"
    assert turns({"role": "user", "content": BILLING + "1;"})[0].content == BILLING + "1;"
    body = json.dumps({"model": "m", "max_tokens": 5, "system": blocks, "messages": [user()]}).encode()
    assert BILLING in str(parse(body, drop_billing_line=False).messages[0].content)


def test_fc_73_tool_results_come_before_the_text_of_their_turn():
    found = turns(
        user({"type": "text", "text": "go"}),
        {"role": "assistant", "content": [{"type": "text", "text": "ok"}, use("A"), use("B")]},
        user(
            result("B", [{"type": "text", "text": "b"}, {"type": "image", "source": {}}]),
            {"type": "text", "text": "and then"},
            result("other", "?"),
            result("A", "failed", is_error=True),
        ),
    )
    arguments = '{"x":1}'
    assert unseen(found, ())[1:] == (
        ChatMessage(
            role="assistant",
            content="ok",
            tool_calls=(
                ToolCall(id="A", name="f", arguments=arguments),
                ToolCall(id="B", name="f", arguments=arguments),
            ),
        ),
        ChatMessage(role="tool", tool_call_id="B", content="b\n[an image, which this model cannot see]"),
        ChatMessage(role="tool", tool_call_id="other", content="?"),
        ChatMessage(role="tool", tool_call_id="A", content="Error: failed"),
        ChatMessage(role="user", content="and then"),
    )


def test_empty_results_and_thoughts_are_kept():
    """FC-64: a tool turn that is dropped makes an agent repeat it for ever."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    found = turns(
        {"role": "assistant", "content": [thinking, {"type": "redacted_thinking", "data": "x"}, use("A")]},
        user(result("A")),
    )
    assert found[0].reasoning == "hm"
    assert found[1] == ChatMessage(role="tool", tool_call_id="A")


@pytest.mark.parametrize("given", [None, {}, "", "{", "[1]", [1], {"a": {"b": None}}])
def test_fc_69_any_input_of_a_replayed_call_is_taken(given: Any):
    block = {"type": "tool_use", "id": "A", "name": "f", "input": given}
    (turn,) = turns({"role": "assistant", "content": [block]})
    assert turn.tool_calls[0].name == "f"


def test_documents_and_later_kinds_give_their_words():
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    search = {"type": "search_result", "content": [{"type": "text", "text": "found"}], "title": "t"}
    later = [{"type": "of_next_year", name: "later"} for name in ("text", "content")]
    silent = {"type": "tool_reference", "tool_name": "f"}
    assert turns(user(document, search, *later, silent))[0].content == "words\nfound\nlater\nlater"


@pytest.mark.parametrize(
    ("choice", "found"),
    [(None, "auto"), ("auto", "auto"), ("any", "required"), ("none", "none"), ("tool", "named:f")],
)
def test_tool_choices(choice: str | None, found: str):
    tools = [{"name": "f", "input_schema": {}}]
    given = None if choice is None else {"type": choice, "name": "f"}
    assert asked(tools=tools, tool_choice=given).tool_choice == found


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": [{"role": "critic", "content": ""}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [user(3)]}, "messages[0].content[0]", "invalid_type"),
        (
            {"messages": [user({"type": "document", "source": {"type": "base64"}})]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        (
            {"messages": [user({"type": "tool_result"})]},
            "messages[0].content[0].tool_use_id",
            "missing_required_parameter",
        ),
        ({"system": 3}, "system", "invalid_type"),
        ({"stop_sequences": [1]}, "stop_sequences[0]", "invalid_type"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name", "missing_required_parameter"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name", "invalid_value"),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type", "invalid_value"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema",
            "missing_required_parameter",
        ),
    ],
)
def test_faults_are_named_by_path(fields: dict[str, Any], param: str, reason: str):
    assert refusal(**fields) == (param, reason)


def test_an_assistants_turn_at_the_end_is_gone_on_with():
    prefill = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I"}]
    assert asked(messages=prefill).template_options == {"continue_final_message": True}
    assert asked(messages=prefill[:1]).template_options == {}


@pytest.mark.parametrize(("text", "begun"), [("I am \n ", "I am"), (" I", " I"), (" \n", None)])
def test_it_is_gone_on_with_behind_its_last_word(text: str, begun: str | None):
    found = asked(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}])
    assert found.messages[-1].content == (text if begun is None else begun)
    assert bool(found.template_options) is (begun is not None)


def test_a_budget_of_thinking_is_the_templates():
    found = asked(thinking={"type": "enabled", "budget_tokens": 1024})
    assert found.template_options == {"enable_thinking": True, "thinking_budget": 1024}


def test_a_missing_budget_is_told_in_the_vendors_words():
    with pytest.raises(ClusterError, match=r"^max_tokens: Field required$"):
        asked(max_tokens=None)


def test_one_call_at_a_time_where_the_client_wants_that():
    assert asked().parallel_tool_calls
    assert not asked(tool_choice={"type": "auto", "disable_parallel_tool_use": True}).parallel_tool_calls
