"""Whatever JSON a client sends: a refusal in words, or a request that travels and becomes a prompt. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.choices import generates
from gateway.dialects.base import Asked
from gateway.dialects.ollama import parse_generate
from gateway.sight import unseen
from protocol.codec import decode, encode
from protocol.errors import ClusterError
from protocol.messages import Generate
from tests.conformance import spoken
from tests.test_splits import DIALECTS
from worker.engine.fake_script import render_chat
from worker.engine.output import PromptError
from worker.engine.prompt import template_message
from worker.history import for_strict_templates
from worker.request import chat_messages, chat_tools, engine_arguments

PARSERS: dict[str, Callable[[bytes], Asked]] = {path: DIALECTS[path].parse for path in spoken.ALL}
PARSERS["/api/generate"] = parse_generate
_NAMES = st.sampled_from(
    [
        *("type", "text", "content", "role", "name", "tool_calls", "tool_call_id", "function", "arguments"),
        *("id", "input", "output", "call_id", "source", "tool_use_id", "is_error", "data", "thinking"),
        *("reasoning_content", "summary", "tools", "parameters", "input_schema", "namespace", "mode"),
        *("allowed_tools", "format", "json_schema", "schema", "options", "think", "images", "tool_choice"),
        *("response_format", "stop", "logit_bias", "metadata", "effort", "include", "function_call"),
        *("chat_template_kwargs", "documents", "top_logprobs", "guided_json"),
    ]
)
_WORDS = st.sampled_from(
    [
        *("user", "assistant", "system", "tool", "developer", "function", "custom", "text", "input_text"),
        *("image", "tool_use", "tool_result", "thinking", "message", "function_call", "namespace", "auto"),
        *("function_call_output", "reasoning", "required", "allowed_tools", "json_schema", "document", "f"),
        *("", "{", "[1]", "null", '{"a": "\\ud800"}', "<think>", "</tool_call>", "\x00", "é"),
    ]
)
_NUMBERS = st.sampled_from([0, -1, 1, 2.5, 1e300, 2**63, 2**64, 10**400])
VALUES = st.recursive(
    st.none() | st.booleans() | _WORDS | _NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=5),
    max_leaves=12,
)
TURNS = st.lists(
    st.builds(
        lambda role, fields: {"role": role, "content": "x", **fields},
        st.sampled_from(["user", "assistant", "system", "tool"]),
        st.dictionaries(_NAMES, VALUES, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


BIG: dict[str, Any] = {
    "chat_template_kwargs": {"a": [2**64, -(10**400)]},
    "tools": [
        {
            "type": "function",
            "name": "f",
            "parameters": {"maximum": 2**64},
            "input_schema": {"maximum": 2**64},
            "function": {"name": "f", "parameters": {"maximum": 10**400}},
        }
    ],
}
"""Integers that no message can carry."""


@pytest.mark.parametrize("path", list(PARSERS))
@example(turns=[{"role": "user", "content": "x"}], fields=BIG, prompt="x")
@given(turns=TURNS, fields=st.dictionaries(_NAMES, VALUES, max_size=2), prompt=VALUES)
def test_any_request_is_refused_in_words_or_becomes_a_prompt(
    path: str, turns: list[Any], fields: dict[str, Any], prompt: Any
):
    said = {"messages": turns, "input": turns, "prompt": prompt, "max_tokens": 5}
    try:
        asked = PARSERS[path](json.dumps({"model": "m", **said, **fields}).encode())
        asked = replace(asked, messages=unseen(asked.messages, ()))
    except ClusterError:
        return
    for generate in generates(asked, "r", "m", 1, 60.0):
        message, _parts = decode(encode(generate))
        assert message == generate
        _prompt_of(generate)


def _prompt_of(generate: Generate) -> None:
    arguments = engine_arguments(generate, "e", 4096, can_resume=True)
    if generate.prompt is not None:
        return
    messages, tools = chat_messages(generate), chat_tools(generate)
    for native in (False, True):
        for_strict_templates([template_message(message, native) for message in messages])
        try:
            text = render_chat(messages, tools, arguments.get("chat_template_kwargs"), native_tools=native)
        except PromptError:
            continue
        text.encode()
