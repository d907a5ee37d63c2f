"""Questions about tokens in the words of vLLM, llama.cpp and Anthropic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.token_questions import (
    count_object,
    parse_count,
    parse_detokenize,
    parse_template,
    parse_tokenize,
    text_object,
    tokens_object,
)
from protocol.errors import ClusterError
from protocol.messages import Tokenize
from protocol.values import ChatMessage, ToolSpec

TOLD = {"text": "ab", "token_ids": [1, 2], "pieces": ["a", "b"], "max_model_len": 9}
TURNS = [{"role": "user", "content": "hi"}]
MESSAGES = (ChatMessage(role="user", content="hi"),)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_vllms_words():
    asked = parse_tokenize(body(model="m", prompt="ab", return_token_strs=True))
    assert (asked.model, asked.tokenize) == ("m", Tokenize(request_id="", text="ab", pieces=True))
    assert tokens_object(asked, TOLD) == {
        "count": 2,
        "max_model_len": 9,
        "tokens": [1, 2],
        "token_strs": ["a", "b"],
    }
    plain = parse_tokenize(body(prompt="ab", add_special_tokens=False))
    assert not plain.tokenize.special
    assert tokens_object(plain, TOLD)["token_strs"] is None


def test_llama_cpps_words():
    asked = parse_tokenize(body(content="ab"))
    assert asked.tokenize == Tokenize(request_id="", text="ab", special=False)
    assert tokens_object(asked, TOLD) == {"tokens": [1, 2]}
    pieces = parse_tokenize(body(content="ab", with_pieces=True, add_special=True))
    assert pieces.tokenize.special
    assert tokens_object(pieces, TOLD) == {"tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": "b"}]}


def test_conversations():
    tool = {"type": "function", "function": {"name": "f"}}
    asked = parse_tokenize(body(messages=TURNS, tools=[tool], chat_template_kwargs={"x": 1}))
    assert asked.tokenize == Tokenize(
        request_id="", messages=MESSAGES, tools=(ToolSpec(name="f"),), template_options={"x": 1}
    )
    assert parse_template(body(messages=TURNS)).tokenize == Tokenize(request_id="", messages=MESSAGES)
    assert text_object(asked, TOLD) == {"prompt": "ab", "content": "ab"}


def test_the_count_of_anthropic_needs_no_max_tokens():
    asked = parse_count(body(model="m", messages=TURNS, system="s"), drop_billing_line=True)
    system = ChatMessage(role="system", content="s")
    assert asked.tokenize == Tokenize(request_id="", messages=(system, *MESSAGES))
    assert count_object(asked, TOLD) == {"input_tokens": 2}


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_tokenize, {}, "prompt"),
        (parse_tokenize, {"prompt": 3}, "prompt"),
        (parse_tokenize, {"messages": []}, "messages"),
        (parse_template, {}, "messages"),
        (parse_detokenize, {}, "tokens"),
        (parse_detokenize, {"tokens": ["a"]}, "tokens[0]"),
        (parse_detokenize, {"tokens": [1, -1]}, "tokens[1]"),
        (parse_detokenize, {"tokens": [2**64]}, "tokens[0]"),
    ],
)
def test_faults_are_named_by_path(parse: Any, fields: dict[str, Any], param: str):
    with pytest.raises(ClusterError) as caught:
        parse(body(**fields))
    assert caught.value.param == param
