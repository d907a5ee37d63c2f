import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Generate, TokenLogprob
from protocol.values import ChatMessage, SamplingParams, ToolSpec
from worker.answer import Answer
from worker.engine.base import GenerationOutput
from worker.engine.output import EngineOutput, PromptError
from worker.parsers.base import marked
from worker.parsers.json_calls import read_json_calls


def request(stop=(), resumed=()):
    return Generate(
        request_id="r",
        attempt=2,
        model="m",
        sampling=SamplingParams(stop=stop),
        seed=1,
        prompt="hi",
        resume_token_ids=resumed,
    )


def items(*pieces, finish="stop", before=""):
    """A stream of one token a piece, as one of our engines gives it."""
    text = before
    yield EngineOutput("", prompt_tokens=7, cached_tokens=3, finish_reason=None, finished=False)
    for count, piece in enumerate(pieces, 1):
        text += piece
        last = count == len(pieces)
        yield EngineOutput(
            text, [count], 7, count, finish if last else None, new_text=piece, finished=last, cached_tokens=3
        )


def run(answer, outputs):
    deltas = []
    for now, output in enumerate(outputs):
        if not answer.started:
            answer.start(output, float(now))
        deltas += answer.feed(output, float(now))
        if answer.finished is not None:
            break
    return deltas


def test_started_tells_what_the_first_item_knows():
    answer = Answer(request(), 0.0)
    started = answer.start(next(items("a")), 1.0)
    assert (started.request_id, started.attempt, started.prompt_tokens, started.cached_tokens) == (
        "r",
        2,
        7,
        3,
    )


def echoing(logprobs):
    sampling = SamplingParams(logprobs=logprobs)
    return Answer(msgspec.structs.replace(request(), echo=True, sampling=sampling), 0.0)


def test_a_prompt_is_given_back_apart_from_the_answer():
    """Also where the engine was fast, and its first item has more than the prompt."""
    entry = TokenLogprob(1, "p", 0.0)
    for rest, tokens in (("", []), ("a", [1])):
        answer = echoing(0)
        item = EngineOutput(
            "p" + rest, tokens, 1, len(tokens), None, new_text="p" + rest, finished=False, echoed="p"
        )
        started = answer.start(replace(item, prompt_logprobs=[entry]), 1.0)
        assert (started.prompt_text, started.prompt_logprobs) == ("p", (entry,))
        assert [delta.text for delta in answer.feed(item, 1.0)] == ([rest] if rest else [])


def test_more_log_probabilities_of_a_prompt_than_a_message_holds_are_refused():
    entries = [TokenLogprob(1, "p", 0.0)] * 20_000
    item = EngineOutput("p", echoed="p", finished=False, finish_reason=None, prompt_logprobs=entries)
    echoing(2).start(item, 1.0)
    with pytest.raises(PromptError, match="20000 tokens"):
        echoing(20).start(item, 1.0)


def test_each_item_with_something_new_is_a_delta():
    answer = Answer(request(), 0.0)
    deltas = run(answer, items("He", "llo", "", finish="length"))
    assert [(d.text, d.token_ids, d.completion_tokens) for d in deltas] == [
        ("He", (1,), 1),
        ("llo", (2,), 2),
        ("", (3,), 3),
    ]
    assert answer.finished is not None
    assert answer.finished.finish_reason == "length"
    assert answer.finished.usage.completion_tokens == 3
    assert (answer.finished.usage.prompt_tokens, answer.finished.usage.cached_tokens) == (7, 3)
    assert answer.finished.matched_stop is None


def test_a_stop_string_across_items_ends_the_answer_and_keeps_all_ids():
    answer = Answer(request(stop=("END",)), 0.0)
    deltas = run(answer, items("one", "EN", "D two", "three"))
    assert "".join(d.text for d in deltas) == "one"
    assert [d.token_ids for d in deltas] == [(1,), (2,), (3,)]
    assert answer.finished is not None
    assert (answer.finished.finish_reason, answer.finished.matched_stop) == ("stop", "END")
    assert answer.finished.usage.completion_tokens == 3


def test_a_stop_string_in_the_last_item_wins_over_its_reason():
    answer = Answer(request(stop=("!",)), 0.0)
    run(answer, items("hi", "!", finish="length"))
    assert answer.finished is not None
    assert answer.finished.finish_reason == "stop"


def test_what_was_held_back_comes_with_the_end():
    answer = Answer(request(stop=("END",)), 0.0)
    assert "".join(d.text for d in run(answer, items("x", "EN"))) == "xEN"


def test_the_engines_own_stop_is_passed_on():
    answer = Answer(request(), 0.0)
    run(answer, [EngineOutput("a", [5], 1, 1, "stop", new_text="a", matched_stop=5)])
    assert answer.finished is not None
    assert answer.finished.matched_stop == 5


def test_times_are_told_phase_by_phase():
    answer = Answer(request(), -2.0)
    run(answer, items("a", "b", "c"))
    assert answer.finished is not None
    timings = answer.finished.timings
    assert (timings.queued_s, timings.prefill_s, timings.decode_s) == (2.0, 1.0, 2.0)


def test_an_engine_that_gives_text_so_far_only_is_understood():
    answer = Answer(request(), 0.0)
    outputs = [
        GenerationOutput("He", finish_reason=None, finished=False),
        GenerationOutput("Hello", finish_reason=None, finished=False),
        GenerationOutput("Hello"),
    ]
    deltas = run(answer, outputs)
    assert [(d.text, d.completion_tokens) for d in deltas] == [("He", 1), ("llo", 2)]
    assert answer.finished is not None
    assert answer.finished.usage.completion_tokens == 2


def test_what_was_emitted_elsewhere_is_not_shown_again_but_counts_for_stop_strings():
    answer = Answer(request(stop=("END",), resumed=(1, 2)), 0.0)
    deltas = run(answer, items("D", "more", before="oneEN"))
    assert "".join(d.text for d in deltas) == ""
    assert answer.finished is not None
    assert answer.finished.matched_stop == "END"


def test_a_resumed_answer_goes_on_where_it_was():
    answer = Answer(request(resumed=(1, 2)), 0.0)
    assert "".join(d.text for d in run(answer, items(" two", " three", before="one"))) == " two three"


CALLED = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SYNTAX = marked(("<think>", "</think>"), ("<tool_call>", "</tool_call>"), read_json_calls)


def chat(stop=(), tools=True, parallel=True, resumed=(), choice="auto"):
    return Generate(
        request_id="r",
        attempt=0,
        model="m",
        sampling=SamplingParams(stop=stop),
        seed=1,
        messages=(ChatMessage(role="user", content="hi"),),
        tools=(ToolSpec(name="add"),) if tools else (),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        resume_token_ids=resumed,
    )


def answered(*pieces, finish="stop", before="", **fields):
    """What an answer to a chat comes to: reasoning, text, calls; and its end."""
    answer = Answer(chat(**fields), 0.0, SYNTAX)
    return folded(run(answer, items(*pieces, finish=finish, before=before))), answer.finished


def folded(deltas):
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        assert piece.name or piece.index in names, "arguments before their name"
        names[piece.index] = names.get(piece.index, "") + piece.name
        arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments
    calls = [(names[index], arguments[index]) for index in names]
    return "".join(d.reasoning for d in deltas), "".join(d.text for d in deltas), calls


def test_reasoning_text_and_calls_go_their_own_ways():
    said, end = answered("<think>", "hm", "</think>", "\n\nLook.\n", CALLED, "\n", CALLED)
    assert said == ("hm", "Look.", [("add", '{"a": 1}')] * 2)
    assert end.finish_reason == "tool_calls"
    assert (end.usage.completion_tokens, end.usage.reasoning_tokens) == (7, 3)


def test_a_call_is_told_with_its_name_first_and_its_number():
    answer = Answer(chat(), 0.0, SYNTAX)
    deltas = run(answer, items(f"a{CALLED}b", CALLED))
    assert [
        (d.text, [tuple(msgspec.structs.astuple(p)) for p in d.tool_calls], d.token_ids) for d in deltas
    ] == [
        ("a", [(0, "add", ""), (0, "", '{"a": 1}')], (1,)),
        ("b", [], ()),
        ("", [(1, "add", ""), (1, "", '{"a": 1}')], (2,)),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_fc_71_a_call_at_any_border_is_told_once(size):
    text = f"before {CALLED} after"
    said, _end = answered(*[text[at : at + size] for at in range(0, len(text), size)])
    assert said == ("", "before after", [("add", '{"a": 1}')])


def test_fc_60_stop_strings_are_looked_for_in_visible_text_only():
    said, end = answered(
        "<think>", "END", "</think>", "a", CALLED.replace("1", '"END"'), "b EN", "D c", stop=("END",)
    )
    assert said == ("END", "ab ", [("add", '{"a": "END"}')])
    assert (end.finish_reason, end.matched_stop, end.usage.completion_tokens) == ("tool_calls", "END", 7)


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "matched"),
    [
        (("The quick br", "own f", "ox jumps"), ("own fox",), "The quick br", "own fox"),
        (("The quick br", "own f", "ox jumps"), ("fox jumps!",), "The quick brown fox jumps", None),
        (("xa", "bc"), ("ab", "abc"), "x", "ab"),
        (("stop", "more"), ("stop",), "", "stop"),
        (("more", "stop"), ("stop",), "more", "stop"),
        (("a👩", "\u200d👧b"), ("\u200d",), "a👩", "\u200d"),
    ],
)
def test_fc_60_a_stop_string_over_several_tokens(pieces, stop, text, matched):
    said, end = answered(*pieces, stop=stop)
    assert said[1] == text
    assert (end.finish_reason, end.matched_stop) == ("stop", matched)


def test_a_cut_inside_of_a_call_gives_its_text_back_and_says_length():
    said, end = answered(CALLED, '<tool_call>{"na', finish="length")
    assert said == ("", '<tool_call>{"na', [("add", '{"a": 1}')])
    assert end.finish_reason == "length"


FORCED = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("parallel", [False, True])
def test_a_forced_call_that_is_cut_off_never_shows_its_marks(parallel):
    for end in range(1, len(FORCED)):
        (_, text, calls), finished = answered(
            FORCED[:end], finish="length", choice="required", parallel=parallel
        )
        assert text == ""
        name_is_there = end > FORCED.index('{"a"')
        assert [name for name, _arguments in calls] == ["add"] * name_is_there
        cut = [arguments for _name, arguments in calls if not is_json(arguments)]
        assert finished.finish_reason == "length" or not (cut or parallel)


def test_a_forced_call_that_a_stop_token_cuts_off_is_not_called_one():
    said, end = answered('<tool_call>\n{"name": "add", "arguments": {"a', choice="named:add")
    assert said == ("", "", [("add", '{"a')])
    assert end.finish_reason == "stop"


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_a_cut_inside_of_reasoning():
    said, end = answered("<think>", "hm ", finish="length")
    assert said == ("hm ", "", [])
    assert (end.finish_reason, end.usage.reasoning_tokens) == ("length", 2)


def test_fc_68_a_broken_call_is_text_and_the_reason_says_so():
    broken = '<tool_call>{"name": "add", "arguments": {"a": }}</tool_call>'
    said, end = answered("Look.\n", broken, finish="tool_calls")
    assert said == ("", f"Look.\n{broken}", [])
    assert end.finish_reason == "stop"


def test_only_one_call_where_only_one_is_wanted():
    said, end = answered("a", CALLED, CALLED, "b", parallel=False)
    assert said == ("", "a", [("add", '{"a": 1}')])
    assert (end.finish_reason, end.usage.completion_tokens) == ("tool_calls", 2)


def test_without_tools_a_call_is_text():
    assert answered(CALLED, tools=False)[0] == ("", CALLED, [])


def test_a_plain_prompt_is_completed_without_any_syntax():
    answer = Answer(request(), 0.0, SYNTAX)
    assert folded(run(answer, items("<think>", CALLED)))[1] == f"<think>{CALLED}"


def test_a_prompt_that_ends_inside_of_reasoning():
    answer = Answer(chat(), 0.0, SYNTAX)
    outputs = list(items("hm", "</think>", "\nyes"))
    outputs[0].in_reasoning = True
    assert folded(run(answer, outputs)) == ("hm", "yes", [])
    assert answer.finished is not None
    assert answer.finished.usage.reasoning_tokens == 2


PARTS = st.sampled_from(
    [CALLED, "<think>", "</think>", "<tool_call>", "</tool_call>", "a", "ab", " ", "\n", '"']
)


@given(st.lists(PARTS, max_size=10), st.data(), st.booleans())
def test_fc_71_any_cut_and_any_take_over_say_the_same(parts, data, parallel):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, end = answered(text, stop=("aba",), parallel=parallel)
    for cut in (parts, pieces, list(text)):
        said, cut_end = answered(*cut, "", stop=("aba",), parallel=parallel)
        assert said == whole
        assert cut_end.finish_reason == end.finish_reason
    shown = data.draw(st.integers(0, len(parts)))
    first = Answer(chat(stop=("aba",), parallel=parallel), 0.0, SYNTAX)
    told = [d for output in list(items(*parts, ""))[: shown + 1] for d in first.feed(output, 0.0)]
    if first.finished is None and shown:
        before = "".join(parts[:shown])
        second = Answer(chat(stop=("aba",), parallel=parallel, resumed=(1,) * shown), 0.0, SYNTAX)
        told += run(second, items(*parts[shown:], "", before=before))
        assert folded(told) == whole


def test_what_a_draft_proposed_is_counted():
    answer = Answer(request(), 0.0)
    outputs = [replace(item, mtp_drafts=3 * n, mtp_accepted=n) for n, item in enumerate(items("a", "b"), 1)]
    run(answer, outputs)
    assert answer.finished is not None
    assert (answer.finished.usage.mtp_drafts, answer.finished.usage.mtp_accepted) == (9, 3)
