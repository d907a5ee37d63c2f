"""Checks 6, 7, 8 and 11: what the client reads of text and calls, in every dialect, whole and streamed."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.conformance import spoken
from tests.conformance.scripts import TWO_CALLS
from tests.integration.cluster import Cluster, script

pytestmark = pytest.mark.integration

every_dialect = pytest.mark.parametrize("path", spoken.ALL)
both_ways = pytest.mark.parametrize("stream", [False, True])


@pytest.mark.parametrize("path", spoken.WITH_STOPS)
@pytest.mark.parametrize("tools", [(), ("f",)])
@both_ways
def test_check_06_fc_60_stop_strings(http: httpx.Client, path: str, tools: tuple[str, ...], stream: bool):
    cases: list[tuple[list[str], list[str], str, int]] = [
        (["The quick br", "own", " fo", "x jumps"], ["own fox"], "The quick br", 4),
        (["The quick br", "own f", "ox jumps"], ["fox jumps!"], "The quick brown fox jumps", 3),
        (["xa", "bc", "d"], ["ab", "abc"], "x", 2),
        (["xa", "bc", "d"], ["abc", "bc", "xabcde"], "x", 2),
        (["stop", "a"], ["stop"], "", 1),
        (["a", "stop"], ["stop"], "a", 2),
        (["a👩", "\u200d", "👧b"], ["👩\u200d👧"], "a", 3),
        (["a👩", "\u200d", "👧b"], ["👩\u200d👦"], "a👩\u200d👧b", 3),
        (["a \n", "\n b"], ["\n\n"], "a ", 2),
        (["a ", "b"], ["b", ""], "a ", 2),
    ]
    if tools and path == spoken.COMPLETIONS:
        tools = ()
    for tokens, stop, text, count in cases:
        said = spoken.ask(http, path, script(tokens=tokens), stop=stop, tools=tools, stream=stream)
        assert (said.text, said.finish, said.completion_tokens) == (text, "stop", count), (tokens, stop)


@both_ways
def test_check_06_the_stop_string_that_matched_is_named(http: httpx.Client, stream: bool):
    text = script(tokens=["one ", "tw", "o th", "ree"])
    for stop, named in (("two", "two"), ("four", None)):
        answer = http.post(
            "/v1/messages", json=spoken.body(spoken.MESSAGES, text, stop=[stop], stream=stream)
        )
        if stream:
            found = spoken.events(spoken.MESSAGES, answer.text)
            (end,) = [event["delta"] for event in found if event["type"] == "message_delta"]
        else:
            end = answer.json()
        assert (end["stop_reason"], end["stop_sequence"]) == ("stop_sequence" if named else "end_turn", named)


FAMILY = "👩\u200d👧é漢"
BYTES = [f"{byte:02x}" for byte in FAMILY.encode()]


@every_dialect
@both_ways
def test_check_07_fc_58_characters_byte_by_byte(http: httpx.Client, path: str, stream: bool):
    cases: list[tuple[dict[str, Any], int, str, str]] = [
        ({"tokens": ["x"], "bytes": BYTES}, 100, "x" + FAMILY, "stop"),
        ({"bytes": [*BYTES, "20", "f09f"]}, 100, FAMILY + " \ufffd", "stop"),
        ({"bytes": [*BYTES, "f0", "9f"]}, len(BYTES) + 1, FAMILY, "length"),
        ({"bytes": ["61", "ff", "62", "80"]}, 100, "a\ufffdb\ufffd", "stop"),
        ({"tokens": ["a \ufffd b"]}, 100, "a \ufffd b", "stop"),
    ]
    for fields, room, text, finish in cases:
        said = spoken.ask(http, path, script(**fields), max_tokens=room, stream=stream)
        assert (said.text, said.finish) == (text, finish), fields


@every_dialect
def test_check_07_who_leaves_in_the_middle_of_a_character_has_read_whole_ones(cluster: Cluster, path: str):
    body = spoken.body(path, script(bytes=BYTES, repeat=100, delay_ms=2), max_tokens=1000, stream=True)
    read = ""
    with httpx.stream("POST", cluster.url() + path, json=body, timeout=30) as answer:
        for piece in answer.iter_text():
            read += piece
            if read.count("漢") > 1:
                break
    assert "\ufffd" not in read
    cluster.wait_idle()


@every_dialect
@both_ways
def test_check_08_nothing_is_trimmed(http: httpx.Client, path: str, stream: bool):
    for tokens in (
        [" lead", "", "\n", "\n\n", "\ttail", " "],
        ["\n"],
        ["", " "],
        ["\r\n", "\u00a0", "\u3000"],
    ):
        said = spoken.ask(http, path, script(tokens=tokens), stream=stream)
        assert (said.text, said.completion_tokens) == ("".join(tokens), len(tokens))


@pytest.mark.parametrize("path", spoken.WITH_TOOLS)
@both_ways
def test_check_11_calls_of_tools(http: httpx.Client, path: str, stream: bool):
    ended = "stop" if path == spoken.OLLAMA else "tool_calls"
    two = spoken.ask(http, path, TWO_CALLS, tools=("f", "g"), stream=stream)
    assert two[:4] == ("ok", "hm, yes", (("f", {"a": 1, "b": "<é>"}), ("g", {})), ended)
    alone = script(tokens=['<tool_call>{"na', 'me": "f"}</tool_call>'])
    assert spoken.ask(http, path, alone, tools=("f",), stream=stream)[:4] == ("", "", (("f", {}),), ended)
    for text in ("<tool_c literal", "a <tool_call", '<tool_call>{"name": "f", "argu', "<thin", "</think>"):
        said = spoken.ask(http, path, script(tokens=list(text)), tools=("f",), stream=stream)
        assert said[:4] == (text, "", (), "stop"), text


def test_check_11_ids_and_names_come_once_and_a_call_alone_has_no_content(http: httpx.Client):
    answer = http.post(spoken.CHAT, json=spoken.body(spoken.CHAT, TWO_CALLS, tools=("f", "g"), stream=True))
    choices = [c for event in spoken.events(spoken.CHAT, answer.text) for c in event["choices"]]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    begun = [(part["index"], part["function"]["name"]) for part in parts if "id" in part]
    assert begun == [(0, "f"), (1, "g")]
    assert len({part["id"] for part in parts if "id" in part}) == 2
    assert all("name" not in part["function"] and "type" not in part for part in parts if "id" not in part)
    alone = script(tokens=['<tool_call>{"name": "f"}</tool_call>'])
    whole = http.post(spoken.CHAT, json=spoken.body(spoken.CHAT, alone, tools=("f",))).json()
    assert whole["choices"][0]["message"]["content"] is None
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("path", spoken.WITH_TOOLS)
def test_check_11_text_is_not_held_back_because_there_are_tools(cluster: Cluster, path: str):
    """A client sees the text long before the answer ends."""
    said = script(tokens=["word ", "by ", "word "], repeat=100, delay_ms=20)
    body = spoken.body(path, said, tools=("f",), max_tokens=1000, stream=True)
    began = time.monotonic()
    with httpx.stream("POST", cluster.url() + path, json=body, timeout=30) as answer:
        seen = ""
        for piece in answer.iter_text():
            seen += piece
            if seen.count("word") > 1:
                break
    assert time.monotonic() - began < 4, "six seconds is what the whole answer takes"
