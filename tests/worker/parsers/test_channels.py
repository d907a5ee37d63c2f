"""Reasoning, text and calls told apart, at any cut."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.parsers.base import REASONING, TEXT, TOOL, Channel, Syntax, marked
from worker.parsers.channels import Channels
from worker.parsers.json_calls import read_json_calls

THINK = ("<think>", "</think>")
CALL = ("<tool_call>", "</tool_call>")
SYNTAX = marked(THINK, CALL, read_json_calls)
GOOD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def told(pieces, syntax=SYNTAX, *, in_reasoning=False, end=True):
    """The parts, neighbours of one channel joined."""
    channels = Channels(syntax, in_reasoning=in_reasoning)
    parts = [part for piece in pieces for part in channels.feed(piece)]
    if end:
        parts += channels.flush()
    joined: list[tuple[Channel, str, str]] = []
    for channel, text, name, *_rest in parts:
        assert text
        if joined and channel is not Channel.CALL and joined[-1][0] is channel:
            joined[-1] = (channel, joined[-1][1] + text, name)
        else:
            joined.append((channel, text, name))
    return [
        (channel.name.lower(), name, text) if name else (channel.name.lower(), text)
        for channel, text, name in joined
    ]


def text_of(pieces, **kwargs):
    return [part[1] for part in told(pieces, **kwargs) if part[0] == "text"]


def test_an_answer_of_all_three():
    assert told([f"<think>\nhm \n</think>\n\nLet me see.{GOOD}"]) == [
        ("reasoning", "hm"),
        ("text", "Let me see."),
        ("call", "add", '{"a": 1}'),
    ]


def test_text_without_marks_is_left_as_it_is():
    text = "  leading, trailing \n\n <thin and </tool_call> <tool"
    assert told(list(text)) == [("text", text)]


def test_text_is_shown_at_once_but_for_what_may_begin_a_mark():
    channels = Channels(SYNTAX)
    assert [part.text for part in channels.feed("a < b\n")] == ["a < b\n"]
    assert [part.text for part in channels.feed("x <tool")] == ["x "]
    assert [part.text for part in channels.feed("box")] == ["<toolbox"]


def test_a_prompt_that_ends_inside_of_reasoning():
    assert told(["\nhm", "\n</think>", "\n\nyes"], in_reasoning=True) == [
        ("reasoning", "hm"),
        ("text", "yes"),
    ]
    no_reasoning = marked(None, CALL, read_json_calls)
    assert told([" yes"], no_reasoning, in_reasoning=True) == [("text", " yes")]


def test_reasoning_that_is_cut_off_stays_reasoning():
    assert told(["<think>hm, </th"]) == [("reasoning", "hm, </th")]
    assert told(["<think>hm, "]) == [("reasoning", "hm, ")]


def test_two_calls_and_a_call_inside_of_reasoning():
    assert told(["<think>I call", GOOD, "\n", GOOD]) == [
        ("reasoning", "I call"),
        ("call", "add", '{"a": 1}'),
        ("text", "\n"),
        ("call", "add", '{"a": 1}'),
    ]


def test_a_call_that_the_answers_end_closes():
    assert told(['<tool_call>{"name": "f", "arguments": {}}']) == [("call", "f", "{}")]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "nonsense",
        "{'name': 'f', 'arguments': {}}",
        '{"name": "f", "arguments": {},}',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "[1]"}',
        r'{"name": "f", "arguments": "\"{}\""}',
        '{"name": "f"}{"name": "g"}',
        '{"name": "f"}\n<tool_call>{"name": "g"}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000,
        "<function=f><parameter=a>1</parameter></function>",
        "[]",
    ],
    ids=lambda body: body[:30],
)
def test_fc_68_what_is_no_call_is_given_back_as_text(body):
    broken = f"<tool_call>{body}</tool_call>"
    assert "".join(text_of([f"{GOOD}a{broken}b"])) == f"a{broken}b"
    assert [part[0] for part in told([f"{GOOD}a{broken}b{GOOD}"])] == ["call", "text", "call"]


def test_fc_68_a_good_call_before_one_that_is_cut_off_is_kept():
    assert told([GOOD, '<tool_call>{"name": "add", "argu']) == [
        ("call", "add", '{"a": 1}'),
        ("text", '<tool_call>{"name": "add", "argu'),
    ]


def test_fc_68_large_arguments_and_names_that_nobody_offered():
    value = "x" * 200_000
    call = json.dumps({"name": "other", "arguments": {"a": value}})
    assert told([f"<tool_call>{call}</tool_call>"]) == [("call", "other", json.dumps({"a": value}))]


def test_the_end_mark_inside_of_a_string_is_part_of_it():
    call = json.dumps({"name": "write", "arguments": {"text": 'a "</tool_call>" <tool_call> b'}})
    assert told(list(f"<tool_call>{call}</tool_call>")) == [
        ("call", "write", json.dumps({"text": 'a "</tool_call>" <tool_call> b'}))
    ]


def test_a_string_that_does_not_end_hides_no_call_behind_it():
    broken = '<tool_call>{"name": "f</tool_call>'
    assert told([f"{broken}\n{GOOD}"]) == [("text", broken + "\n"), ("call", "add", '{"a": 1}')]


def test_end_marks_in_strings_are_bounded_and_hide_no_call_behind_them():
    """A model in a loop writes thousands of them, and each would have all of the call read again."""
    begun = '<tool_call>{"name": "f", "arguments": {"a": "'
    loop = begun + "</tool_call>\\d" * 20_000
    assert told([loop[at : at + 64] for at in range(0, len(loop), 64)]) == [("text", loop)]
    few = begun + "</tool_call> " * 15 + '"}}</tool_call>'
    assert [part[0] for part in told(list(few))] == ["call"]
    many = begun + "</tool_call> " * 16
    for cut in ([many + GOOD], list(many + GOOD)):
        assert told(cut) == [("text", many), ("call", "add", '{"a": 1}')]


def test_what_is_no_call_inside_of_reasoning_stays_reasoning():
    assert told(["<think>a <tool_call>?</tool_call> b</think>c"]) == [
        ("reasoning", "a <tool_call>?</tool_call> b"),
        ("text", "c"),
    ]


def test_without_tools_the_marks_of_calls_are_text():
    assert told([f"<think>a</think>{GOOD}"], SYNTAX.without_tools()) == [("reasoning", "a"), ("text", GOOD)]


def test_calls_without_an_end_mark_go_on_to_the_end():
    syntax = marked(None, ("[CALLS]", ""), read_json_calls)
    assert told(['a[CALLS][{"name": "f"}, ', '{"name": "g"}]'], syntax) == [
        ("text", "a"),
        ("call", "f", "{}"),
        ("call", "g", "{}"),
    ]
    assert told(["a[CALLS]b"], syntax) == [("text", "a[CALLS]b")]


def test_headers_of_messages_are_dropped():
    edges = {
        "header": (("to=self|", REASONING), ("to=user|", TEXT)),
        REASONING: (("<eom>", "header"),),
        TEXT: (("<eom>", "header"), ("<eot>", TEXT)),
        TOOL: (),
    }
    assert told(["to=self|hm<eom>", "<start>to=user|yes<eot>"], Syntax(edges, first="header")) == [
        ("reasoning", "hm"),
        ("text", "yes"),
    ]


PIECES = st.sampled_from(
    [
        *THINK,
        *CALL,
        GOOD,
        '{"name": "add", "arguments": {"a": 1}}',
        '"',
        "\\",
        "{",
        "<",
        "a",
        "b",
        " ",
        "\n",
        "é",
    ]
)
ANSWERS = st.lists(PIECES, max_size=12).map("".join)


@st.composite
def cut(draw, texts=ANSWERS):
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cut(), st.booleans(), st.booleans())
def test_fc_71_any_cut_tells_the_same(answer, in_reasoning, end):
    text, pieces = answer
    assert told(pieces, in_reasoning=in_reasoning, end=end) == told(
        [text], in_reasoning=in_reasoning, end=end
    )


@given(ANSWERS, st.booleans())
def test_fc_71_each_character_is_claimed_once(text, in_reasoning):
    channels = Channels(SYNTAX, in_reasoning=in_reasoning)
    parts = [*channels.feed(text), *channels.flush()]
    call = rf'{CALL[0]}\s*{{"name": "add", "arguments": {{"a": 1}}}}\s*(?:{CALL[1]})?'
    gap = rf"(?:\s|{THINK[0]}|{THINK[1]}|{call})*"
    runs = [call if part.channel is Channel.CALL else re.escape(part.text) for part in parts]
    assert re.fullmatch(gap + gap.join([*runs, ""]), text), parts


@given(cut(st.text()))
def test_what_has_no_marks_is_text(answer):
    text, pieces = answer
    assert "".join(text_of(pieces, syntax=Syntax())) == text
