"""What chunks tell of tokens, and when: `stream_options`."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.base import Dialect
from gateway.dialects.chunk_usage import UsageWanted, usage_wanted
from gateway.dialects.fields import Fields
from gateway.dialects.openai_chat_answer import ChatCompletions
from gateway.dialects.openai_completions import Completions
from gateway.pieces import Piece
from protocol.errors import ClusterError
from tests.gateway.dialects.answers import IDENTITY, USAGE, events, finished

MESSAGES = b'"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "n": 2, "stream": true'


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (None, UsageWanted()),
        ({}, UsageWanted()),
        ({"include_usage": True}, UsageWanted(last=True)),
        ({"include_usage": True, "continuous_usage_stats": True}, UsageWanted(last=True, each=True)),
        ({"include_usage": True, "continuous_usage_stats": None}, UsageWanted(last=True)),
        ({"continuous_usage_stats": True}, UsageWanted()),
        ({"include_usage": False, "continuous_usage_stats": True, "include_obfuscation": 1}, UsageWanted()),
    ],
)
def test_what_is_asked_for(options: Any, wanted: UsageWanted):
    assert usage_wanted(Fields({"stream_options": options}), stream=True) == wanted


@pytest.mark.parametrize(
    ("options", "stream", "param"),
    [
        ({}, False, "stream_options"),
        (True, True, "stream_options"),
        ({"include_usage": "yes"}, True, "stream_options.include_usage"),
        ({"continuous_usage_stats": 1}, True, "stream_options.continuous_usage_stats"),
    ],
)
def test_faults_are_named_by_path(options: Any, stream: bool, param: str):
    with pytest.raises(ClusterError) as caught:
        usage_wanted(Fields({"stream_options": options}), stream)
    assert caught.value.param == param


@pytest.mark.parametrize("dialect", [ChatCompletions(), Completions()])
def test_counts_so_far_stand_on_every_chunk_and_only_grow(dialect: Dialect):
    options = b', "stream_options": {"include_usage": true, "continuous_usage_stats": true}'
    writer = dialect.writer(dialect.parse(b'{"model": "m", ' + MESSAGES + options + b"}"), IDENTITY)
    data = writer.start(USAGE)
    for index, text, count in ((0, "a", 1), (1, "b", 2), (0, "c", 3)):
        data += writer.piece(index, Piece(text=text, completion_tokens=count))
    data += writer.finish(0, finished()) + writer.finish(1, finished()) + writer.end(USAGE)
    *chunks, last = events(data)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[-5:] == [1, 3, 5, 7, 10]
    assert counts == sorted(counts)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {USAGE.prompt_tokens}
    assert all(c["usage"]["total_tokens"] == 7 + c["usage"]["completion_tokens"] for c in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
