"""Checks 3, 5, 9 and 10: chunks of chat and completions to the letter, usage, several answers, logprobs."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from tests.conformance.scripts import TWO_CALLS
from tests.conformance.spoken import CHAT, COMPLETIONS, body, events
from tests.integration.cluster import script

pytestmark = pytest.mark.integration

both_routes = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@both_routes
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"tools": ("f", "g")},
        {"logprobs": 1},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
)
def test_check_03_every_frame_is_one_data_line(http: httpx.Client, path: str, fields: dict[str, Any]):
    if path == CHAT and "logprobs" in fields:
        fields = {"logprobs": True, "top_logprobs": 1}
    asked = body(path, TWO_CALLS, stream=True, **{"stream_options": None, **fields})
    answer = http.post(path, json=asked)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *frames, last, nothing = answer.text.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames)
    chunks = [json.loads(frame[6:]) for frame in frames]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(fields.get("n", 1)):
        mine = [choice for choice in choices if choice["index"] == index]
        reasons = [choice["finish_reason"] for choice in mine]
        assert reasons[:-1] == [None] * (len(mine) - 1)
        assert reasons[-1]
        if path == CHAT:
            assert ["role" in choice["delta"] for choice in mine] == [True] + [False] * (len(mine) - 1)
            assert mine[-1]["delta"] == {}


OPTIONS: list[tuple[Any, bool, bool]] = [
    (None, False, False),
    ({}, False, False),
    ({"include_usage": None}, False, False),
    ({"include_usage": False}, False, False),
    ({"include_usage": True}, True, False),
    ({"continuous_usage_stats": True}, False, False),
    ({"include_usage": False, "continuous_usage_stats": True}, False, False),
    ({"include_usage": True, "continuous_usage_stats": False}, True, False),
    ({"include_usage": True, "continuous_usage_stats": True}, True, True),
]


@both_routes
@pytest.mark.parametrize(("options", "last", "each"), OPTIONS)
def test_check_05_fc_75_usage_is_told_when_asked_for(
    http: httpx.Client, path: str, options: Any, last: bool, each: bool
):
    text = script(tokens=["a", " b"], repeat=4)
    whole = http.post(path, json=body(path, text)).json()["usage"]
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]
    asked = body(path, text, stream=True, stream_options=options)
    *chunks, end = events(path, http.post(path, json=asked).text)
    if not last:
        assert all("usage" not in chunk and chunk["choices"] for chunk in [*chunks, end])
        return
    assert (end["choices"], end["usage"]) == ([], whole)
    assert all(chunk["choices"] for chunk in chunks)
    told = [chunk["usage"] for chunk in chunks]
    if not each:
        assert told == [None] * len(chunks)
        return
    counts = [usage["completion_tokens"] for usage in told]
    assert counts == sorted(counts)
    assert counts[-1] == whole["completion_tokens"]
    assert all(usage["prompt_tokens"] == whole["prompt_tokens"] for usage in told)


@both_routes
def test_check_05_fc_75_a_stream_that_fails_tells_no_usage(http: httpx.Client, path: str):
    text = script(tokens=["a"], repeat=9, delay_ms=10, raise_at=3)
    found = events(path, http.post(path, json=body(path, text, stream=True)).text)
    assert "error" in found[-1]
    assert all(event.get("usage") is None for event in found)
    refused = http.post(path, json=body(path, "x", stream_options={}))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")


@both_routes
def test_check_09_three_answers_side_by_side(http: httpx.Client, path: str):
    text = script(tokens=["a", " b"], repeat=4, delay_ms=5)
    one = http.post(path, json=body(path, text)).json()["usage"]
    whole = http.post(path, json=body(path, text, n=3)).json()
    *chunks, end = events(path, http.post(path, json=body(path, text, n=3, stream=True)).text)
    for usage in (whole["usage"], end["usage"]):
        assert usage["prompt_tokens"] == one["prompt_tokens"]
        assert usage["completion_tokens"] == 3 * one["completion_tokens"] == 24
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(3):
        mine = [choice for choice in choices if choice["index"] == index]
        texts = [c["text"] if path == COMPLETIONS else c["delta"].get("content", "") for c in mine]
        assert "".join(texts) == "a b" * 4
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]


PIECES: dict[str, Any] = {"tokens": [" Hel", "lo", "\n"], "bytes": ["f09f91", "a9", "e2808d", "f09f", "91a7"]}
HELLO = " Hello\n👩\u200d👧"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wanted", [None, 0, 5, 20])
def test_check_10_logprobs_of_a_chat(http: httpx.Client, stream: bool, wanted: int | None):
    asked = body(CHAT, script(**PIECES), stream=stream, logprobs=True, top_logprobs=wanted)
    answer = http.post(CHAT, json=asked)
    if stream:
        found = events(CHAT, answer.text)
        parts = [c["logprobs"] for event in found for c in event["choices"] if c["logprobs"]]
        entries = [entry for part in parts for entry in part["content"]]
        tokens = found[-1]["usage"]["completion_tokens"]
    else:
        entries = answer.json()["choices"][0]["logprobs"]["content"]
        tokens = answer.json()["usage"]["completion_tokens"]
    assert len(entries) == tokens == 8
    assert {len(entry["top_logprobs"]) for entry in entries} == {wanted or 0}
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == HELLO
    for told in [*entries, *(top for entry in entries for top in entry["top_logprobs"])]:
        assert math.isfinite(told["logprob"])
        assert told["logprob"] <= 0
    for entry in entries:
        ranked = [top["logprob"] for top in entry["top_logprobs"]]
        assert ranked == sorted(ranked, reverse=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wanted", [0, 5, 20])
def test_check_10_logprobs_of_a_completion(http: httpx.Client, stream: bool, wanted: int):
    text = script(tokens=[" Hel", "lo", "\n", "👩"])
    answer = http.post(COMPLETIONS, json=body(COMPLETIONS, text, stream=stream, logprobs=wanted))
    found = events(COMPLETIONS, answer.text) if stream else [answer.json()]
    parts = [c["logprobs"] for event in found for c in event["choices"] if c["logprobs"]]
    joined = {name: [item for part in parts for item in part[name]] for name in parts[0]}
    assert joined["tokens"] == [" Hel", "lo", "\n", "👩"]
    assert joined["text_offset"] == [0, 4, 6, 7]
    assert {len(top) for top in joined["top_logprobs"]} == {wanted}
    assert all(math.isfinite(logprob) for logprob in joined["token_logprobs"])


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (CHAT, {"top_logprobs": 5}, "top_logprobs"),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, "top_logprobs"),
        (CHAT, {"logprobs": 5}, "logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
    ],
)
def test_check_10_more_than_twenty_and_alternatives_of_nothing_are_refused(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
):
    answer = http.post(path, json=body(path, "x", **fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
