"""What a fake engine says where its answer has to have a shape: the real grammars, byte by byte."""

import json
import re

import pytest

from worker.engine.output import PromptError
from worker.engine.syntax import THINK
from worker.parsers.base import Syntax, marked
from worker.parsers.json_calls import TOOL_CALL, read_json_calls

pytest.importorskip("llguidance")

from worker.engine.fake_shapes import short_text
from worker.engine.shape import shape_of

SYNTAX = marked(THINK, TOOL_CALL, read_json_calls)
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]}},
    "required": ["next"],
}
POINT = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "#/$defs/n"}},
    "required": ["x", "y"],
    "$defs": {"n": {"type": "integer", "minimum": 12, "maximum": 14}},
}
TOOLS = [
    {"function": {"name": "now"}},
    {"function": {"name": "point", "parameters": POINT}},
]


def said(given, tools=(), *, in_reasoning=False, syntax=SYNTAX):
    shape = shape_of(given, tools)
    assert shape is not None
    return short_text(shape, syntax, in_reasoning=in_reasoning)


def outputs(**kinds):
    return {"structured_outputs": kinds}


def called(text):
    start, end = TOOL_CALL
    assert text.startswith(start)
    assert text.endswith(end)
    return [read_json_calls(part.strip().removesuffix(end), None)[0] for part in text.split(start)[1:]]


def test_schemas():
    value = json.loads(said(outputs(json=POINT)))
    assert value.keys() == {"x", "y"}
    assert all(12 <= each <= 14 for each in value.values())
    assert json.loads(said(outputs(json={"$ref": "#/$defs/n", "$defs": {"n": NODE}}))) == {"next": None}
    assert json.loads(said(outputs(json={"type": "number", "exclusiveMinimum": 0}))) > 0
    assert isinstance(json.loads(said(outputs(json_object=True))), dict)


def test_patterns_choices_and_grammars():
    assert re.fullmatch(r"\d{3}-[a-z/]+", said(outputs(regex=r"^\d{3}-[a-z/]+$")), re.ASCII)
    anchored = ((r"1\$$", "1$"), (r"1\$", "1$"), (r"a\\$", "a\\"), (r"a\\\$$", "a\\$"), ("^a$", "a"))
    for pattern, text in anchored:
        assert said(outputs(regex=pattern)) == text
    assert said(outputs(choice=["yes", 'nö "q"'])) in ("yes", 'nö "q"')
    assert re.fullmatch("a[0-9]+b", said(outputs(grammar='root ::= "a" [0-9]+ "b"')))
    assert re.fullmatch("x[0-9]", said(outputs(grammar='start: "x" /[0-9]/')))


def test_a_form_that_has_no_short_text_is_named(monkeypatch):
    monkeypatch.setattr("worker.engine.fake_shapes._LONGEST", 8)
    with pytest.raises(PromptError, match="no short answer") as caught:
        said(outputs(json=POINT, field="response_format"))
    assert (caught.value.param, caught.value.reason) == ("response_format", "unsupported")


def test_calls():
    (call,) = called(said({"tool_choice": {"function": {"name": "now"}}}, TOOLS))
    assert call == ("now", "{}")
    (call,) = called(said({"tool_choice": {"function": {"name": "point"}}}, TOOLS))
    assert call.name == "point"
    assert json.loads(call.arguments).keys() == {"x", "y"}
    assert {call.name for call in called(said({"tool_choice": "required"}, TOOLS))} <= {"now", "point"}


def test_references_keep_their_meaning_among_several_functions():
    (call,) = called(
        said({"tool_choice": "required"}, [TOOLS[1], {"function": {"name": "z", "parameters": POINT}}])
    )
    assert all(12 <= each <= 14 for each in json.loads(call.arguments).values())


def test_a_schema_that_cannot_be_followed_takes_any_arguments():
    tools = [{"function": {"name": "f", "parameters": {"properties": {"x": {"type": 123}}}}}, *TOOLS]
    (call,) = called(said({"tool_choice": {"function": {"name": "f"}}}, tools))
    assert isinstance(json.loads(call.arguments), dict)


def test_where_calls_may_come_the_text_is_said():
    assert isinstance(json.loads(said(outputs(json={"type": "integer"}), TOOLS)), int)


def test_reasoning_that_the_prompt_began_is_ended():
    assert said(outputs(choice=["a"]), in_reasoning=True) == "</think>a"
    assert said(outputs(choice=["a"]), in_reasoning=True, syntax=Syntax()) == "a"
    assert said(outputs(choice=["a"]), None, in_reasoning=True) == "a"


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"json": {"type": 123}}, "type must be"),
        ({"json": {"not": {}}}, "not"),
        ({"json": {"$ref": "#/nowhere"}}, "nowhere"),
        ({"regex": "("}, "regex"),
        ({"grammar": "root ::= (("}, "grammar"),
        ({"grammar": "start: nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_reason(kinds, words):
    with pytest.raises(PromptError, match=words) as caught:
        said(outputs(**kinds, field="somewhere"))
    assert (caught.value.param, caught.value.reason) == ("somewhere", "settings")
    assert len(str(caught.value)) < 500
