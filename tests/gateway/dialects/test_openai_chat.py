"""What a chat request may hold, and which words refuse the rest."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.chunk_usage import UsageWanted
from gateway.dialects.openai_chat import ChatRequest, parse
from protocol.errors import ClusterError
from protocol.values import ChatMessage, SamplingParams, ToolCall, ToolSpec

HI = [{"role": "user", "content": "hi"}]


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def choose(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allow(*names: str, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [choose(n) for n in names]}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HI, **fields}).encode()


def parsed(**fields: Any) -> ChatRequest:
    return parse(body(**fields))


def fault(raw: bytes) -> tuple[str | None, str | None]:
    with pytest.raises(ClusterError) as caught:
        parse(raw)
    assert len(caught.value.message) > 10
    return caught.value.param, caught.value.reason


def test_the_least_request():
    assert parsed() == ChatRequest(
        model="m",
        messages=(ChatMessage(role="user", content="hi"),),
        sampling=SamplingParams(),
        seed=None,
        stream=False,
        usage=UsageWanted(),
    )


def test_null_is_absent_and_unknown_fields_are_ignored():
    nothing = dict.fromkeys(
        ("temperature", "stop", "seed", "tools", "n", "stream", "stream_options", "max_tokens", "logit_bias")
    )
    assert parsed(**nothing, store=True, metadata={"a": 1}, user="u", tools_of_tomorrow=[1]) == parsed()


def test_settings_are_taken():
    found = parsed(temperature=0, top_p=0.5, top_k=40, min_p=0.1, stop=["a", "", "b"], max_tokens=5)
    assert found.sampling == SamplingParams(
        max_tokens=5, temperature=0.0, top_p=0.5, top_k=40, min_p=0.1, stop=("a", "b")
    )
    assert parsed(top_k=-1).sampling.top_k == 0
    assert parsed(stop="x").sampling.stop == ("x",)
    assert parsed(stop="").sampling.stop == ()


def test_every_setting_of_the_draw_is_taken():
    given = {
        "presence_penalty": -1.0,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.3,
        "repetition_context_size": 20,
        "min_tokens": 3,
        "ignore_eos": True,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
    }
    found = parsed(**given, stop_token_ids=[7, 8, 7], logit_bias={"5": -100, "6": 1.5, "7": None}).sampling
    assert {name: getattr(found, name) for name in given} == given
    assert (found.stop_token_ids, found.logit_bias) == ((7, 8), {5: -100.0, 6: 1.5})
    assert parsed(repeat_penalty=1.2).sampling.repetition_penalty == 1.2


def test_logprobs_alone_have_no_alternatives():
    assert parsed().sampling.logprobs is None
    assert parsed(logprobs=False).sampling.logprobs is None
    for alternatives, expected in ((None, 0), (0, 0), (1, 1), (20, 20)):
        assert parsed(logprobs=True, top_logprobs=alternatives).sampling.logprobs == expected


def test_the_newer_name_of_the_token_limit_wins():
    assert parsed(max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    assert parsed(max_tokens=256.0).sampling.max_tokens == 256


def test_stream_options():
    assert parsed(stream=True, stream_options={"include_usage": True}).usage == UsageWanted(last=True)
    assert parsed(stream=True, stream_options={}).usage == UsageWanted()
    assert fault(body(stream_options={})) == ("stream_options", "invalid_value")


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_64_bit_seed_becomes_one_that_is_not_negative(seed: int):
    found = parsed(seed=seed).seed
    assert found is not None
    assert 0 <= found < 2**63
    assert found == parsed(seed=seed).seed
    assert seed < 0 or found == seed


def test_roles_and_contents():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": "tool", "content": "42", "tool_call_id": "c", "cache_control": {}},
        {"role": "user", "content": ""},
    ]
    found = parsed(messages=messages).messages
    assert [(m.role, m.content) for m in found] == [
        ("system", "a\nb"),
        ("assistant", ""),
        ("tool", "42"),
        ("user", ""),
    ]
    assert found[1].tool_calls[0].name == "f"
    assert found[2].tool_call_id == "c"


@pytest.mark.parametrize(
    "raw",
    [b"", b"nonsense", b"[]", b"null", b'"x"', b"5", b'{"a": NaN}', b'{"a": Infinity}',
     b'{"messages": 1e999}', b'{"a": "\xff"}', b'{"a": "\\ud83d"}',
     b"[" * 100_000, b'{"a":' * 100_000, b'{"a": 1}}'],
)  # fmt: skip
def test_what_is_no_json_object(raw: bytes):
    assert fault(raw)[1] == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": {}}, "messages", "invalid_type"),
        ({"messages": [[]]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": 1}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
        ),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type",
         "missing_required_parameter"),
        ({"model": 5}, "model", "invalid_type"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"top_p": True}, "top_p", "invalid_type"),
        ({"top_k": 1.5}, "top_k", "invalid_type"),
        ({"min_p": -0.1}, "min_p", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 10**30}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens", "invalid_type"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"seed": -(2**63) - 1}, "seed", "invalid_value"),
        ({"stop": {"a": 1}}, "stop", "invalid_type"),
        ({"stop": ["a", None]}, "stop[1]", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"repeat_penalty": -1}, "repeat_penalty", "invalid_value"),
        ({"repetition_context_size": -1}, "repetition_context_size", "invalid_value"),
        ({"xtc_probability": 1.1}, "xtc_probability", "invalid_value"),
        ({"xtc_threshold": 0.6}, "xtc_threshold", "invalid_value"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "invalid_value"),
        ({"min_tokens": 6, "max_tokens": 9, "max_completion_tokens": 5}, "min_tokens", "invalid_value"),
        ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
        ({"stop_token_ids": 5}, "stop_token_ids", "invalid_type"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]", "invalid_type"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]", "invalid_type"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]", "invalid_value"),
        ({"logit_bias": []}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1.0": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"9" * 10: 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5", "invalid_type"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [5]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters",
         "invalid_type"),
        ({"tools": [ADD] * 129}, "tools", "invalid_value"),
        ({"tools": [ADD], "tool_choice": "must"}, "tool_choice", "invalid_value"),
        ({"tools": [ADD], "tool_choice": 1}, "tool_choice", "invalid_type"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tools": [ADD], "tool_choice": choose("other")}, "tool_choice", "invalid_value"),
        ({"tools": [ADD], "tool_choice": allow("other")}, "tool_choice", "invalid_value"),
        ({"tools": [ADD], "tool_choice": allow("add", mode="must")}, "tool_choice", "invalid_value"),
        ({"tools": [ADD], "tool_choice": allow(mode="required")}, "tool_choice", "invalid_value"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
        ({"enable_thinking": "no"}, "enable_thinking", "invalid_type"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
        ({"reasoning_effort": 3}, "reasoning_effort", "invalid_type"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": "json"}, "response_format", "invalid_type"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, reason: str):
    assert fault(body(**fields)) == (param, reason)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{}]}, "functions"),
        ({"audio": {"voice": "x"}}, "audio"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(fields: dict[str, Any], param: str):
    assert fault(body(**fields)) == (param, "unsupported_parameter")


def test_neutral_values_of_what_is_not_built_are_taken():
    neutral = {
        "n": 1,
        "tools": [],
        "response_format": {"type": "text"},
        "logprobs": False,
        "logit_bias": {},
        "presence_penalty": 0,
        "repetition_penalty": 1.0,
    }
    assert parsed(**neutral) == parsed()


_json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = ("model", "messages", "stop", "seed", "stream", "stream_options", "tools", "tool_choice", "n",
           "temperature", "top_k", "logit_bias", "response_format", "modalities", "functions", "thinking",
           "parallel_tool_calls", "chat_template_kwargs", "think", "reasoning_effort")  # fmt: skip


@given(st.dictionaries(st.sampled_from(_FIELDS), _json))
def test_any_object_gives_a_request_or_a_client_error(fields: dict[str, Any]):
    for raw in (body(**fields), json.dumps(fields).encode()):
        with contextlib.suppress(ClusterError):
            assert isinstance(parse(raw), ChatRequest)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_client_error(raw: bytes):
    with pytest.raises(ClusterError):
        parse(raw)


def test_fields_that_nobody_reads_are_passed_over_and_not_built():
    long = (
        b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "zzz": ['
        + b"[]," * 700_000
        + b"[]]}"
    )
    began = time.thread_time()
    assert parse(long) == parsed()
    passed_s = time.thread_time() - began
    began = time.thread_time()
    json.loads(long)
    assert passed_s < (time.thread_time() - began) / 3


def test_a_field_that_holds_no_conversation_is_bounded():
    assert fault(body(tools=[[]] * 400_000)) == ("tools", "invalid_value")
    assert parsed(messages=[{"role": "user", "content": "x" * 2_000_000}]).messages[0].content


def test_stop_strings_are_bounded_and_each_counts_once():
    assert parsed(stop=["a", "b", "a"] * 1000).sampling.stop == ("a", "b")
    assert len(parsed(stop=[f"s{i}" for i in range(1024)]).sampling.stop) == 1024
    assert fault(body(stop=[f"s{i}" for i in range(1025)])) == ("stop", "invalid_value")
    assert fault(body(stop="x" * 65_537)) == ("stop", "invalid_value")


def test_tools_are_taken_and_kinds_that_are_no_functions_are_left_out():
    found = parsed(tools=[ADD, {"type": "web_search"}, {"function": {"name": "f", "strict": True}}])
    assert found.tools == (ToolSpec(name="add", parameters={"type": "object"}), ToolSpec(name="f"))
    assert (found.tool_choice, found.parallel_tool_calls) == ("auto", True)


def test_what_may_be_called():
    tools = [ADD, {"function": {"name": "f"}}]
    assert parsed(tools=tools, tool_choice="none").tool_choice == "none"
    assert not parsed(tools=tools, parallel_tool_calls=False).parallel_tool_calls
    assert [tool.name for tool in parsed(tools=tools, tool_choice=allow("f")).tools] == ["f"]


@pytest.mark.parametrize(
    ("choice", "names", "found"),
    [
        ("required", ["add", "f"], "required"),
        (choose("f"), ["add", "f"], "named:f"),
        (allow("f", mode="required"), ["f"], "required"),
    ],
)
def test_what_must_be_called(choice: Any, names: list[str], found: str):
    asked = parsed(tools=[ADD, {"function": {"name": "f"}}], tool_choice=choice)
    assert ([tool.name for tool in asked.tools], asked.tool_choice) == (names, found)


def test_several_answers():
    assert (parsed().n, parsed(n=3).n) == (1, 3)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning_effort": "of next year"}, {}),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"think": False}, {"enable_thinking": False}),
        ({"think": "high"}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "of tomorrow"}}, {}),
        ({"chat_template_kwargs": {"enable_thinking": False, "a": 1}, "enable_thinking": True},
         {"enable_thinking": False, "a": 1}),
        ({"continue_final_message": True}, {"continue_final_message": True}),
    ],
)  # fmt: skip
def test_what_is_said_to_the_template(fields: dict[str, Any], options: dict[str, Any]):
    assert parsed(**fields).template_options == options


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [("{", "{"), ("", ""), (None, ""), ("[1]", "[1]"), ({"a": 1}, '{"a":1}'), ('{"a": 1}', '{"a": 1}')],
)
def test_fc_69_whatever_stands_for_the_arguments_of_a_past_call_is_taken(arguments: Any, taken: str):
    calls = [{"id": "c", "function": {"name": "f", "arguments": arguments}}, {"type": "custom", "custom": {}}]
    found = parsed(messages=[*HI, {"role": "assistant", "content": None, "tool_calls": calls}])
    assert found.messages[1].tool_calls == (ToolCall(id="c", name="f", arguments=taken),)


def test_calls_of_the_older_form_are_kept():
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    found = parsed(messages=[*HI, call, {"role": "function", "name": "f", "content": "1"}]).messages
    assert found[1].tool_calls == (ToolCall(id="f", name="f", arguments="{}"),)
    assert found[2].tool_call_id == "f"


def test_what_a_model_thought_may_come_in_openrouters_form():
    details = [{"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted", "data": "x"}, 7]
    turn = {"role": "assistant", "content": "a", "reasoning_details": details}
    assert parsed(messages=[turn]).messages[0].reasoning == "hm"
    assert parsed(messages=[{**turn, "reasoning": "first"}]).messages[0].reasoning == "first"
    assert parsed(messages=[{**turn, "reasoning_details": None}]).messages[0].reasoning == ""
