"""What went wrong with others, in every dialect: FC-64, 66, 69, 71, 73, 82. The echo shows the prompt."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.conformance import spoken
from tests.integration.cluster import script

pytestmark = pytest.mark.integration

ECHO = script(echo_prompt=True)
with_tools = pytest.mark.parametrize("path", spoken.WITH_TOOLS)


def _user(path: str, text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _called(path: str, calls: dict[str, tuple[str, Any]]) -> list[dict[str, Any]]:
    """A turn of the model that calls tools: by id, the name and the arguments as the client has them."""
    if path == spoken.RESPONSES:
        return [
            {"type": "function_call", "call_id": i, "name": name, "arguments": given}
            for i, (name, given) in calls.items()
        ]
    if path == spoken.MESSAGES:
        content = [
            {"type": "tool_use", "id": i, "name": name, "input": given} for i, (name, given) in calls.items()
        ]
        return [{"role": "assistant", "content": content}]
    functions = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": given}}
        for i, (name, given) in calls.items()
    ]
    return [{"role": "assistant", "content": "", "tool_calls": functions}]


def _results(path: str, results: dict[str, str]) -> list[dict[str, Any]]:
    if path == spoken.RESPONSES:
        return [{"type": "function_call_output", "call_id": i, "output": o} for i, o in results.items()]
    if path == spoken.MESSAGES:
        blocks = [{"type": "tool_result", "tool_use_id": i, "content": o} for i, o in results.items()]
        return [{"role": "user", "content": blocks}]
    return [{"role": "tool", "tool_call_id": i, "content": o} for i, o in results.items()]


def _arguments(path: str, given: dict[str, Any]) -> Any:
    return given if path in (spoken.MESSAGES, spoken.OLLAMA) else json.dumps(given)


def _ask(http: httpx.Client, path: str, turns: list[dict[str, Any]], **given: Any) -> spoken.Said:
    fields: dict[str, Any] = {**given, "input" if path == spoken.RESPONSES else "messages": turns}
    return spoken.ask(http, path, "", max_tokens=3000, **fields)


@with_tools
def test_fc_64_a_tool_turn_is_in_the_prompt_of_the_next_one(http: httpx.Client, path: str):
    first = [_user(path, ECHO)]
    shown = _ask(http, path, first).text.removesuffix("<|im_start|>assistant\n")
    calls = _called(
        path, {"A": ("look", _arguments(path, {"q": "ARGS-1"})), "B": ("now", _arguments(path, {}))}
    )
    later = [*first, *calls, *_results(path, {"A": "RESULT-77", "B": ""}), _user(path, ECHO)]
    told = _ask(http, path, later).text
    assert told.startswith(shown)
    rest = told.removeprefix(shown)
    assert rest.count("RESULT-77") == rest.count("ARGS-1") == 1
    assert rest.index('"name": "look"') < rest.index('"name": "now"') < rest.index("RESULT-77")
    assert rest.count("<|im_start|>tool\n") == 2, "an empty result is one too"


SYSTEM: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    spoken.CHAT: (
        {},
        [{"role": "developer", "content": "one"}, {"role": "system", "content": "two"}],
    ),
    spoken.RESPONSES: ({"instructions": "one"}, [{"role": "developer", "content": "two"}]),
    spoken.MESSAGES: ({"system": "one"}, [{"role": "system", "content": "two"}]),
    spoken.OLLAMA: ({}, [{"role": "system", "content": "one"}, {"role": "system", "content": "two"}]),
}


@with_tools
def test_fc_66_all_that_is_like_a_system_text_stands_at_the_head_once(http: httpx.Client, path: str):
    fields, lead = SYSTEM[path]
    turns = [_user(path, "hi"), *lead, {"role": "system", "content": "three"}, _user(path, ECHO)]
    told = _ask(http, path, turns, **fields, next_years_field={"a": 1}).text
    assert told.startswith("<|im_start|>system\none\n\ntwo\n\nthree<|im_end|>\n<|im_start|>user\nhi")
    assert told.count("<|im_start|>system") == 1


@pytest.mark.parametrize("version", ["", "next-years-beta-2031-01-01", "a,b,c", "é", "x" * 4000])
def test_fc_66_unknown_betas_and_kinds_of_blocks_are_passed_over(http: httpx.Client, version: str):
    blocks = [{"type": "next_years_kind", "payload": [1]}, {"type": "text", "text": ECHO}]
    body = spoken.body(spoken.MESSAGES, "", messages=[{"role": "user", "content": blocks}])
    headers = [(b"anthropic-beta", version.encode()), (b"anthropic-version", b"2031-01-01")]
    answer = http.post(spoken.MESSAGES + "?beta=true", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert "fake:" in spoken.whole(spoken.MESSAGES, answer.json()).text


BROKEN = ("{", "", None, "null", "[1]", '"x"', "{}", {"a": 1}, '{"a": "\\ud800"}', '{"a": NaN}', "\\d+", [1])
"""What models, and other servers, have left in histories where arguments are."""


@with_tools
@pytest.mark.parametrize("given", BROKEN)
def test_fc_69_no_arguments_in_a_history_end_a_conversation(http: httpx.Client, path: str, given: Any):
    if path == spoken.RESPONSES and not isinstance(given, str | None):
        given = json.dumps(given)
    turns = [_user(path, "hi"), *_called(path, {"A": ("f", given)}), *_results(path, {"A": "R-1"})]
    told = _ask(http, path, [*turns, _user(path, ECHO)]).text
    assert '"name": "f"' in told
    assert told.count("R-1") == 1


@with_tools
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_fc_71_each_character_once_also_behind_an_earlier_tool_turn(http: httpx.Client, path: str, size: int):
    call = '<tool_call>{"name": "f", "arguments": {"a": "one two <3 </tool_call>"}}</tool_call>'
    earlier = [
        _user(path, "hi"),
        *_called(path, {"A": ("f", _arguments(path, {"a": "one two"}))}),
        *_results(path, {"A": "x"}),
    ]
    for before, after in (("", ""), ("before ", ""), ("", " after"), ("before ", " after")):
        answer = f"{before}{call}{after}"
        tokens = [answer[at : at + size] for at in range(0, len(answer), size)]
        turns = [*earlier, _user(path, script(tokens=tokens))]
        found = [_ask(http, path, turns, tools=("f",), stream=stream) for stream in (False, True)]
        text = before.strip() + (after if before else after.lstrip())
        assert [said.calls for said in found] == [(("f", {"a": "one two <3 </tool_call>"}),)] * 2
        assert [said.text for said in found] == [found[0].text] * 2
        assert found[0].text.split() == text.split()


@pytest.mark.parametrize("path", [spoken.CHAT, spoken.RESPONSES, spoken.MESSAGES])
def test_fc_73_results_in_any_order_follow_their_calls(http: httpx.Client, path: str):
    """Ollama's calls have no ids: there, results belong to them in their order."""
    ids = [f"call{n:02d}" for n in range(30)]
    calls = _called(path, {i: (f"f{i}", _arguments(path, {"n": i})) for i in ids})
    results = {i: f"result of {i};" for i in reversed(ids)} | {"nobody": "result of nobody;"}
    told = _ask(http, path, [_user(path, "hi"), *calls, *_results(path, results), _user(path, ECHO)]).text
    places = [told.index(f"result of {i};") for i in [*ids, "nobody"]]
    assert places == sorted(places)
    assert told.index(f'"name": "f{ids[-1]}"') < places[0]


def test_fc_73_errors_texts_and_images_among_results(http: httpx.Client):
    content = [
        {"type": "tool_result", "tool_use_id": "B", "content": "of B", "is_error": True},
        {"type": "text", "text": "words between"},
        {"type": "tool_result", "tool_use_id": "A", "content": [{"type": "image", "source": {}}]},
        {"type": "tool_result", "tool_use_id": "A", "content": "of A again"},
    ]
    path = spoken.MESSAGES
    turns = [_user(path, "hi"), *_called(path, {"A": ("f", {}), "B": ("g", {}), "C": ("h", {})})]
    told = _ask(http, path, [*turns, {"role": "user", "content": content}, _user(path, ECHO)]).text
    places = [told.index(w) for w in ("[an image", "of A again", "Error: of B", "words between", "fake:")]
    assert places == sorted(places)


def test_fc_82_tokens_are_counted_while_every_place_is_taken(http: httpx.Client):
    """w-2 has few places; nobody who counts stands in line for one."""
    endless = script(tokens=["a"], repeat=100_000, delay_ms=20)
    asked = {"model": "org/other:latest", "messages": [_user(spoken.CHAT, endless)], "max_tokens": 100_000}
    count = {"model": "org/other:latest", "messages": [_user(spoken.CHAT, "hello there")]}
    free = http.post("/v1/messages/count_tokens", json=count).json()
    with http.stream("POST", spoken.CHAT, json={**asked, "stream": True, "n": 128}) as occupant:
        pieces = occupant.iter_raw()  # held: one that is collected closes the connection
        next(pieces)
        assert http.post("/v1/messages/count_tokens", json=count).json() == free
