"""Where an answer is in its grammar follows from its tokens, however one got there."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.output import PromptError
from worker.engine.shape import Form, Function, Shape
from worker.parsers.base import Syntax
from worker.parsers.constrained import constrained

pytest.importorskip("llguidance")

from worker.engine.structured import END_OF_BYTES, for_bytes

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["ä", "b"]}, "n": {"type": "integer"}},
    "required": ["a"],
}
ANSWER = '{"a": "ä", "n": -12}'.encode()
GRAMMARS = for_bytes()


def guide(schema=SCHEMA, field="here"):
    return GRAMMARS.guide(Shape(Form("json", schema, field)), constrained(Syntax(), calls=False))


def allowed(found):
    return np.flatnonzero(np.unpackbits(found.allowed().view(np.uint8), bitorder="little")).tolist()


def fresh(known):
    found = guide()
    found.advance(ANSWER[:known])
    return allowed(found)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8))
def test_it_goes_to_any_place_from_any_other(places):
    moved = guide()
    for place in places:
        moved.advance(ANSWER[:place])
        assert allowed(moved) == fresh(place)


def test_it_leaves_a_draft_that_was_not_taken():
    moved = guide()
    moved.advance(b'{"a": "b"}')
    assert moved.over
    moved.advance('{"a": "ä"'.encode())
    assert not moved.over
    assert ord("}") in allowed(moved)


def test_only_the_end_is_left_behind_the_end_and_what_follows_is_not_looked_at():
    found = guide()
    found.advance(b'{"a": "b"}')
    assert (found.over, allowed(found)) == (True, [END_OF_BYTES])
    for further in (b"x", b"xyz", b""):
        found.advance(b'{"a": "b"}' + further)
        assert (found.over, allowed(found)) == (True, [END_OF_BYTES])
    found.advance([*b'{"a": "b"}', END_OF_BYTES, END_OF_BYTES])
    assert allowed(found) == [END_OF_BYTES]


def test_what_is_not_of_the_form_is_refused_by_name():
    found = guide(field="response_format")
    with pytest.raises(PromptError, match="response_format") as caught:
        found.advance(b'{"a": "c')
    assert caught.value.param == "response_format"
    with pytest.raises(PromptError):
        found.allowed()


def test_white_space_is_bounded():
    found = guide()
    found.advance(b'{ "a":\n   "b"')
    with pytest.raises(PromptError):
        found.advance(b'{ "a":\n   "b"  ')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a{1,10000}){1,10000}"},
        {"enum": ["x" * 50 + str(number) for number in range(10_000)]},
        {"properties": {f"p{n}": {"type": "string", "pattern": "(x+x+)+y.*z{3,40}"} for n in range(500)}},
        json.loads('{"items":' * 400 + "{}" + "}" * 400),
    ],
    ids=["nested repetitions", "many choices", "many patterns", "deep"],
)
def test_what_nobody_means_takes_a_moment_at_most(schema):
    """The preparation thread serves everybody. (A test has a minute.)"""
    with contextlib.suppress(PromptError):
        assert allowed(guide(schema))


def test_a_form_that_no_answer_has_is_refused_before_the_first_token():
    with pytest.raises(PromptError, match="as here has it: nothing can come next") as caught:
        guide({"$ref": "#"})
    assert caught.value.param == "here"


def chain(links):
    """Objects in objects, each of which is only referred to."""
    inner = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(links)}
    return {"$defs": {**inner, f"d{links}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def test_long_chains_of_references_end_no_process():
    assert allowed(guide(chain(1600)))  # 4,802 parts
    with pytest.raises(PromptError, match="here has more than 5000 objects and lists"):
        guide(chain(1700))


def test_tools_with_larger_schemas_than_can_be_followed_take_any_object():
    syntax = constrained(Syntax(), calls=True)
    call = Shape(functions=(Function("f", {"type": "object", **chain(1700)}),))
    assert allowed(GRAMMARS.guide(call, syntax))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(1000)) + '\nr1000: "a"', "1000 lines"),
        (
            "root ::= r0\r" + "\r".join(f'r{i} ::= "a" r{i + 1}' for i in range(1001)) + '\rr1001 ::= "a"',
            "lines",
        ),
        ('start: "' + "a" * 65536 + '"', "65536 characters"),
    ],
)
def test_grammars_have_bounds(text, why):
    with pytest.raises(PromptError, match=f"here has more than .*{why}"):
        GRAMMARS.guide(Shape(Form("grammar", text, "here")), constrained(Syntax(), calls=False))
