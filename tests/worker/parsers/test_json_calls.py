"""What models write for JSON, and what their histories hold."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.parsers.base import Call
from worker.parsers.json_calls import argument_object, read_json_calls


def read(text):
    return read_json_calls(text, None)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "f"}', {}),
        ('\n {"name": "f", "arguments": null}\n', {}),
        ('{"name": "f", "arguments": ""}', {}),
        ('{"name": "f", "parameters": {"a": 1}}', {"a": 1}),
        ('{"name": "f", "arguments": {"a": [1, {"b": "é"}]}}', {"a": [1, {"b": "é"}]}),
        (r'{"name": "f", "arguments": "{\"a\": 1}"}', {"a": 1}),
        ('{"name": "f", "arguments": {"a": "one\ntwo\t"}}', {"a": "one\ntwo\t"}),
        (r'{"name": "f", "arguments": {"a": "\d+\.\"\\"}}', {"a": '\\d+\\."\\'}),
        (r'{"name": "f", "arguments": {"a": "C:\Users\u00e9"}}', {"a": "C:\\Usersé"}),
    ],
)
def test_fc_68_what_can_be_read(text, arguments):
    ((name, found),) = read(text)
    assert (name, json.loads(found)) == ("f", arguments)
    assert "é" not in text or "é" in found


def test_several_calls_in_an_array():
    assert read('[{"name": "f"}, {"name": "g", "arguments": {"a": 1}}]') == [
        Call("f", "{}"),
        Call("g", '{"a": 1}'),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", "5", "null", '{"name": "f"} {"name": "g"}', '{"name": "%s"}' % ("x" * 257)]
)
def test_what_is_no_call(text):
    with pytest.raises(ValueError, match=r"."):
        read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("null", {}),
        ("{", {"input": "{"}),
        ("[1]", {"input": [1]}),
        ('"text"', {"input": "text"}),
        ('{"a": "\\ud800"}', {"input": '{"a": "\\ud800"}'}),
        ('{"\\udc00": 1}', {"input": '{"\\udc00": 1}'}),
        ('{"a": "\\ud83d\\ude00 \\u00e9"}', {"a": "😀 é"}),
        ("[" * 100_000, {"input": "[" * 100_000}),
    ],
)
def test_fc_69_arguments_of_a_history_are_always_an_object(text, value):
    assert argument_object(text) == value


@given(st.text())
def test_any_text_is_a_call_or_a_value_error(text):
    try:
        calls = read(text)
    except ValueError:
        return
    assert all(isinstance(json.loads(call.arguments), dict) for call in calls)


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
       lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)))  # fmt: skip
def test_fc_69_what_is_read_can_be_read_again(arguments):
    text = json.dumps({"name": "f", "arguments": arguments})
    ((_name, found),) = read(text)
    assert argument_object(found) == arguments
