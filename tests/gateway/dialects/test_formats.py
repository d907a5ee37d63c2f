"""What form an answer must have, in every spelling."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects import anthropic_messages, ollama, openai_chat, openai_completions, openai_responses
from gateway.dialects.response_store import ResponseStore
from protocol.errors import ClusterError

SCHEMA = {"type": "object", "properties": {"b": {"maximum": 1e30}, "a": {"maximum": 10**30}}}
JSON = json.dumps(SCHEMA)
IN_CHAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
FLAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}


def encoded(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def chat(**fields: Any) -> dict[str, Any] | None:
    return openai_chat.parse(encoded(messages=[{"role": "user", "content": "hi"}], **fields)).response_format


def fault(**fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(ClusterError) as caught:
        chat(**fields)
    return caught.value.param, caught.value.reason


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True, "field": "response_format"}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}},
         {"json": JSON, "field": "response_format"}),
        ({"response_format": IN_CHAT}, {"json": JSON, "field": "response_format"}),
        ({"guided_json": SCHEMA}, {"json": JSON, "field": "guided_json"}),
        ({"guided_json": JSON}, {"json": JSON, "field": "guided_json"}),
        ({"guided_regex": "a+"}, {"regex": "a+", "field": "guided_regex"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"], "field": "guided_choice"}),
        ({"guided_grammar": "start: x"}, {"grammar": "start: x", "field": "guided_grammar"}),
        ({"json_schema": SCHEMA}, {"json": JSON, "field": "json_schema"}),
        ({"grammar": "root ::= x"}, {"grammar": "root ::= x", "field": "grammar"}),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}},
         {"json": JSON, "field": "structured_outputs"}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True, "field": "structured_outputs"}),
        ({"structured_outputs": {"regex": "a", "json_object": False, "whitespace_pattern": " "}},
         {"regex": "a", "field": "structured_outputs"}),
    ],
)  # fmt: skip
def test_every_spelling_in_chat_and_completions(fields: dict[str, Any], found: dict[str, Any] | None):
    assert chat(**fields) == found
    assert openai_completions.parse(encoded(prompt="hi", **fields)).response_format == found


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"response_format": {}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema",
         "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema", "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": "{}"}}},
         "response_format.json_schema.schema", "invalid_type"),
        ({"guided_json": "{"}, "guided_json", "invalid_value"),
        ({"guided_json": "[]"}, "guided_json", "invalid_type"),
        ({"guided_json": 1}, "guided_json", "invalid_type"),
        ({"guided_regex": ""}, "guided_regex", "invalid_value"),
        ({"guided_regex": 1}, "guided_regex", "invalid_type"),
        ({"guided_choice": []}, "guided_choice", "invalid_value"),
        ({"guided_choice": "a"}, "guided_choice", "invalid_type"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "invalid_type"),
        ({"guided_choice": [""]}, "guided_choice[0]", "invalid_value"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "invalid_type"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag",
         "unsupported_parameter"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "invalid_value"),
    ],
)  # fmt: skip
def test_a_wrong_one_is_named(fields: dict[str, Any], param: str, reason: str):
    assert fault(**fields) == (param, reason)


def test_a_response():
    asked = openai_responses.parse(encoded(input="hi", text={"format": FLAT}), ResponseStore())
    assert asked.response_format == {"json": JSON, "field": "text.format"}
    assert asked.echoed["text"] == {"format": FLAT}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"output_config": {"effort": "low", "format": FLAT}}, "output_config.format"),
        ({"output_format": FLAT}, "output_format"),
    ],
)
def test_a_message(fields: dict[str, Any], field: str):
    turns = [{"role": "user", "content": "hi"}]
    asked = anthropic_messages.parse(encoded(max_tokens=9, messages=turns, **fields))
    assert asked.response_format == {"json": JSON, "field": field}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ("", None),
        ("json", {"json_object": True, "field": "format"}),
        (SCHEMA, {"json": JSON, "field": "format"}),
    ],
)
def test_ollama(given: Any, found: dict[str, Any] | None):
    assert ollama.parse_generate(encoded(prompt="hi", format=given)).response_format == found
