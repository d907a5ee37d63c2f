"""The bytes that clients read: one body, or chunks."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.dialects import sse
from gateway.dialects.openai_chat_answer import Identity, StreamEncoder, whole_body
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Finished
from protocol.values import Load, Usage

IDENTITY = Identity("chatcmpl-1", 1700000000, "alias", "fp")


def finished(reason: str = "stop") -> Finished:
    usage = Usage(prompt_tokens=4, cached_tokens=1, completion_tokens=3, reasoning_tokens=2)
    return Finished(request_id="r", attempt=0, finish_reason=reason, usage=usage, load=Load())


def events(data: bytes) -> list[Any]:
    blocks = data.split(b"\n\n")
    assert blocks.pop() == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [json.loads(b[6:]) for b in blocks if b != b"data: [DONE]"]


def test_a_whole_body_is_what_the_official_client_expects():
    found = ChatCompletion.model_validate_json(whole_body(IDENTITY, "text", "thought", finished("length")))
    assert found.choices[0].message.content == "text"
    assert found.choices[0].message.model_extra == {"reasoning_content": "thought", "reasoning": "thought"}
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.total_tokens, found.model) == (7, "alias")
    raw = json.loads(whole_body(IDENTITY, "", "", finished()))
    assert raw["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert raw["choices"][0]["logprobs"] is None


def test_chunks_are_what_the_official_client_expects():
    encoder = StreamEncoder(IDENTITY, include_usage=True)
    data = encoder.role() + encoder.reasoning("hm") + encoder.text("a") + encoder.finish(finished())
    chunks = events(data)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "a"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, None, "stop"]
    assert all(c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert data.endswith(b"data: [DONE]\n\n")


def test_without_include_usage_no_chunk_speaks_of_it():
    encoder = StreamEncoder(IDENTITY, include_usage=False)
    assert b"usage" not in encoder.role() + encoder.text("a") + encoder.finish(finished())


def test_an_unknown_finish_reason_is_not_shown():
    assert b'"finish_reason":"stop"' in StreamEncoder(IDENTITY, False).finish(finished("abort"))


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_comes_through(text: str):
    (chunk,) = events(StreamEncoder(IDENTITY, include_usage=False).text(text))
    assert chunk["choices"][0]["delta"]["content"] == text


def test_a_late_error_is_one_event_with_all_four_keys():
    (event,) = events(sse.error_event(ClusterError(ErrorCode.WORKER_LOST, "gone\nfor good")))
    assert event == {
        "error": {"message": "gone\nfor good", "type": "server_error", "param": None, "code": "worker_lost"}
    }
