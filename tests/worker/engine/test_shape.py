"""What an answer has to be, as the settings say it."""

import pytest

from worker.engine.output import PromptError
from worker.engine.shape import Form, Function, Shape, shape_of

ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}}}}}
NOW = {"type": "function", "function": {"name": "now"}}
FUNCTIONS = (
    Function("add", {"properties": {"a": {}}, "type": "object", "additionalProperties": False}),
    Function("now", {"properties": {}, "type": "object", "additionalProperties": False}),
)


def named(name):
    return {"tool_choice": {"type": "function", "function": {"name": name}}}


@pytest.mark.parametrize(
    ("given", "tools", "shape"),
    [
        ({}, None, None),
        ({}, [ADD], None),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, [ADD], None),
        ({"tool_choice": "required"}, [ADD, NOW], Shape(None, FUNCTIONS, several=True)),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [ADD], Shape(None, FUNCTIONS[:1])),
        (named("now"), [ADD, NOW], Shape(None, FUNCTIONS[1:])),
        ({"structured_outputs": {"regex": "a"}}, None, Shape(Form("regex", "a"), several=True, plain=True)),
        ({"structured_outputs": {"json": '{"b": 1, "a": 2}', "field": "format"}}, [],
         Shape(Form("json", {"b": 1, "a": 2}, "format"), several=True)),
        ({"structured_outputs": {"json_object": True}}, [NOW],
         Shape(Form("json_object", True), FUNCTIONS[1:], several=True)),
        ({"structured_outputs": {"regex": "a"}, "tool_choice": "required"}, [NOW],
         Shape(None, FUNCTIONS[1:], several=True)),
    ],
)  # fmt: skip
def test_shapes(given, tools, shape):
    assert shape_of(given, tools) == shape


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "string"}, {"type": "object"}),
        ({"properties": {}, "additionalProperties": True},
         {"type": "object", "properties": {}, "additionalProperties": True}),
    ],
)  # fmt: skip
def test_arguments_are_an_object(parameters, schema):
    shape = shape_of({"tool_choice": "required"}, [{"function": {"name": "f", "parameters": parameters}}])
    assert shape is not None
    assert shape.functions[0].schema == schema


@pytest.mark.parametrize(
    ("given", "tools", "param"),
    [
        (named("other"), [ADD], "tool_choice"),
        ({"tool_choice": "required"}, [], "tool_choice"),
        ({"structured_outputs": {}}, [], "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True, "field": "x"}}, [], "x"),
        ({"structured_outputs": {"json": "{"}}, [], "structured_outputs"),
        ({"structured_outputs": {"json": "[]"}}, [], "structured_outputs"),
    ],
)
def test_faults_are_named(given, tools, param):
    with pytest.raises(PromptError) as caught:
        shape_of(given, tools)
    assert caught.value.param == param
