"""Anthropic's own client, with its strict validation on, and what its coding agent sends."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.conformance.scripts import TWO_CALLS
from tests.integration.cluster import Cluster, script

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.integration

MODEL = "fake-model"


def ask(content: Any, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }


def test_check_02_a_whole_answer(claude: Any):
    answer = claude.messages.create(**ask(script(tokens=["Hel", "lo"], bytes=["f09f98", "80"])))
    assert [block.text for block in answer.content] == ["Hello😀"]
    assert (answer.stop_reason, answer.stop_sequence, answer.model) == ("end_turn", None, MODEL)
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 0
    assert answer._request_id


def test_check_02_a_streamed_answer_equals_the_whole_one(claude: Any):
    asked = ask(script(tokens=["a", " b"], repeat=5))
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    whole = claude.messages.create(**asked)
    assert text == whole.content[0].text == "a b" * 5
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_events_of_a_stream(claude: Any):
    kinds = [event.type for event in claude.messages.create(**ask(script(tokens=["a"])), stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert "content_block_delta" in kinds


def test_a_stop_sequence_is_named(claude: Any):
    answer = claude.messages.create(**ask(script(tokens=["one ", "tw", "o th"]), stop_sequences=["two"]))
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == (
        "one ",
        "stop_sequence",
        "two",
    )


def test_the_budget_ends_with_max_tokens(claude: Any):
    answer = claude.messages.create(**ask(script(tokens=["a"], repeat=50)) | {"max_tokens": 7})
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 7)


TOOLS = [{"name": name, "description": "d", "input_schema": {"type": "object"}} for name in ("f", "g")]


def test_check_02_thought_text_and_two_calls_whole_and_streamed(claude: Any):
    asked = ask(TWO_CALLS, tools=TOOLS)
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for answer in (whole, streamed):
        thinking, text, first, second = answer.content
        assert (thinking.type, thinking.thinking, bool(thinking.signature)) == ("thinking", "hm, yes", True)
        assert text.text == "ok"
        assert (first.type, first.name, first.input) == ("tool_use", "f", {"a": 1, "b": "<é>"})
        assert (second.name, second.input) == ("g", {})
        assert first.id != second.id
        assert answer.stop_reason == "tool_use"


def test_fc_64_what_is_emitted_is_taken_back_and_reaches_the_prompt(claude: Any):
    answer = claude.messages.create(**ask(TWO_CALLS, tools=TOOLS))
    calls = [block.id for block in answer.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call} for call in reversed(calls)]
    results[0]["content"] = "RESULT-77"
    history = [
        {"role": "user", "content": "begin"},
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [{"type": "text", "text": "after"}, *results]},
        {"role": "user", "content": script(echo_prompt=True)},
    ]
    later = claude.messages.create(**ask("", tools=TOOLS) | {"messages": history, "max_tokens": 4000})
    prompt = "".join(block.text for block in later.content if block.type == "text")
    assert prompt.count("RESULT-77") == 1
    assert prompt.index('"name": "f"') < prompt.index("RESULT-77") < prompt.index("after")


def test_one_call_at_a_time(claude: Any):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    answer = claude.messages.create(**ask(TWO_CALLS, tools=TOOLS, tool_choice=choice))
    assert [block.name for block in answer.content if block.type == "tool_use"] == ["f"]


def test_the_model_goes_on_with_a_turn_that_was_begun(claude: Any):
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I think"}]
    answer = claude.messages.create(**ask("") | {"messages": history, "max_tokens": 3})
    assert answer.usage.output_tokens == 3


def test_errors_are_the_clients_own_classes(claude: Any):
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(**ask("x") | {"model": "nothing"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.body["request_id"] == missing.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(**ask("x", tool_choice={"type": "any"}))
    with pytest.raises(anthropic.BadRequestError) as long:
        claude.messages.create(**ask("word " * 5000))
    assert "prompt is too long: " in str(long.value)
    assert "maximum context length is 4096 tokens" in str(long.value)


def test_fc_77_a_failure_before_the_first_token_is_a_status_and_later_an_event(claude: Any):
    with pytest.raises(anthropic.InternalServerError):
        claude.messages.create(**ask(script(tokens=["a"], raise_at=0)))
    late = claude.messages.create(
        **ask(script(tokens=["a"], repeat=20, delay_ms=20, raise_at=5)), stream=True
    )
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(late)
    assert caught.value.body["error"]["type"] == "api_error"


def test_check_02_tokens_are_counted(claude: Any):
    asked = {"model": MODEL, "messages": ask("one two")["messages"], "tools": TOOLS, "system": "brief"}
    usage = claude.messages.create(**asked, max_tokens=1).usage
    assert claude.messages.count_tokens(**asked).input_tokens == usage.input_tokens > 2


def test_check_02_models_are_listed_and_retrieved(claude: Any):
    ids = [model.id for model in claude.models.list()]
    assert ids[:3] == [MODEL, "org/other:latest", "loading"]
    assert ids[-1] == "claude-local"
    assert claude.models.retrieve("org/other:latest").display_name == "org/other:latest"
    assert claude.models.retrieve("claude-local").id == "claude-local"


def test_check_23_fc_66_a_turn_of_a_coding_agent(cluster: Cluster):
    """FC-16, FC-66: two turns that differ in their billing line alone have the same prompt."""

    def prompt_of(nonce: str) -> str:
        billing = f"x-anthropic-billing-header: cc_version=9.9.9.abc; cc_entrypoint=cli; cch={nonce};"
        body = ask(
            [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}],
            system=[{"type": "text", "text": billing}, {"type": "text", "text": "You are an agent."}],
            thinking={"type": "adaptive"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            metadata={"user_id": "u"},
            tools=[{"type": "web_search_20250305", "name": "web_search"}],
        )
        body["messages"] += [
            {"role": "system", "content": "the date changed"},
            {"role": "user", "content": [{"type": "text", "text": script(echo_prompt=True)}]},
        ]
        answer = httpx.post(
            cluster.url() + "/v1/messages?beta=true",
            json=body,
            headers={"anthropic-beta": "some-beta-2030-01-01", "anthropic-version": "2030-01-01"},
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["content"])

    first = prompt_of("36ee5")
    assert "You are an agent." in first
    assert "the date changed" in first
    assert "billing" not in first
    assert prompt_of("0aaa9") == first


def test_a_vendors_own_model_name_means_a_served_model(claude: Any):
    answer = claude.messages.create(**ask(script(tokens=["a"])) | {"model": "claude-some-5-20300101"})
    assert (answer.content[0].text, answer.model) == ("a", "claude-some-5-20300101")


def test_the_path_doubled_by_a_base_url_with_a_version_is_understood(cluster: Cluster):
    answer = httpx.post(cluster.url() + "/v1/v1/messages", json=ask(script(tokens=["a"])))
    assert json.loads(answer.text)["content"][0]["text"] == "a"
