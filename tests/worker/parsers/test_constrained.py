"""An answer that a grammar shapes, told apart."""

import pytest

from tests.worker.parsers.test_channels import told
from worker.parsers.base import REASONING, TEXT, TOOL, Syntax, marked
from worker.parsers.channels import Channels
from worker.parsers.constrained import call_marks, constrained
from worker.parsers.json_calls import TOOL_CALL, read_json_calls

OWN = marked(("<think>", "</think>"), ("[call]", "[/call]"), read_json_calls)
JSON = '{"a": "<think>x</think>[call]"}'
CALL = '[call]\n{"name": "f", "arguments": {}}\n[/call]'


def cut(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_marks_inside_of_the_text_are_text(size):
    syntax = constrained(OWN, calls=True)
    assert told(cut(JSON, size), syntax) == [("text", JSON)]
    thought = told(cut(f"<think>\nhm\n</think>\n\n{JSON}", size), syntax)
    assert thought == [("reasoning", "hm"), ("text", JSON)]
    assert told(cut(f"hm</think>{JSON}", size), syntax, in_reasoning=True) == [
        ("reasoning", "hm"),
        ("text", JSON),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_calls_come_after_reasoning_and_after_one_another(size):
    found = told(cut(f"<think>hm</think>{CALL}\n{CALL}", size), constrained(OWN, calls=True))
    assert [part for part in found if part != ("text", "\n")] == [
        ("reasoning", "hm"),
        ("call", "f", "{}"),
        ("call", "f", "{}"),
    ]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[ca", [("text", "[ca")]),
        ("[call]", []),
        ('[call]\n{"na', []),
        ('[call]\n{"name": "f"', []),
        ('[call]\n{"name": "f", "arguments": ', []),
        ('[call]\n{"name": "f",\n  "arguments": {', [("call", "f", "{")]),
        ('[call]\n{"name": "f \\"g\\"", "arguments": {"a": "[/call]', [("call", 'f "g"', '{"a": "[/call]')]),
        ('[call]\n{"name": "f", "arguments": {"a": 1}', [("call", "f", '{"a": 1}')]),
        ('[call]\n{"name": "f", "arguments": {"a": 1}}\n[/cal', [("call", "f", '{"a": 1}')]),
        ('[call]\n{"name": "f", "arguments": {"a": "\\ud800"}', [("call", "f", '{"a": "\\ud800"}')]),
        (f'{CALL}\n[call]{{"name": "g", "arguments": {{"a', [("call", "f", "{}"), ("call", "g", '{"a')]),
    ],
)
def test_a_call_that_is_cut_off_is_told_as_far_as_it_goes(text, found, size):
    parts = told(cut(text, size), constrained(OWN, calls=True))
    assert [part for part in parts if part != ("text", "\n")] == found


@pytest.mark.parametrize("text", ["[", "[ca", "[call", f"{CALL}\n[ca", "<th"])
def test_where_nothing_but_calls_can_come_the_beginning_of_a_mark_is_no_text(text):
    syntax = constrained(OWN, calls=True, text=False)
    assert ["".join(part[1:]) for part in told(list(text), syntax) if part[0] == "text"] in ([], ["\n"])


def test_a_cut_call_is_whole_where_its_arguments_are():
    for text, whole in (('{"a": 1}', True), ('{"a": 1', False)):
        channels = Channels(constrained(OWN, calls=True))
        channels.feed(f'[call]{{"name": "f", "arguments": {text}')
        (part,) = channels.flush()
        assert part.whole is whole


def test_without_calls_their_marks_are_text():
    assert told([CALL], constrained(OWN, calls=False)) == [("text", CALL)]


def test_a_syntax_whose_calls_are_no_json_is_replaced():
    other = marked(None, ("[call]", "[/call]"), lambda text, tools: [])
    endless = marked(None, ("[call]", ""), read_json_calls)
    assert [call_marks(each) for each in (OWN, other, endless, Syntax())] == [
        ("[call]", "[/call]"),
        TOOL_CALL,
        TOOL_CALL,
        TOOL_CALL,
    ]


def test_a_model_that_writes_several_messages_writes_one():
    edges = {"header": (("|", TEXT),), TEXT: (("<think>", REASONING),), REASONING: (("</think>", TEXT),)}
    syntax = constrained(Syntax(edges, first="header"), calls=True)
    assert not syntax.has_reasoning
    assert syntax.marks(TOOL) == TOOL_CALL
    assert told([JSON], syntax) == [("text", JSON)]
