"""OpenAI's chat completions, the answer: a whole body, or the chunks of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects import sse
from protocol.messages import Finished
from protocol.values import Usage

_encode = msgspec.json.encode
_FINISH_REASONS = frozenset({"stop", "length", "tool_calls"})


class Identity(msgspec.Struct, frozen=True):
    """What all chunks of one answer have in common."""

    id: str
    created: int
    model: str
    """As the client asked for it, also where that is an alias."""
    fingerprint: str | None


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def whole_body(identity: Identity, text: str, reasoning: str, finished: Finished) -> bytes:
    """The body of an answer that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _finish_reason(finished),
    }
    return _encode(
        {
            "id": identity.id,
            "object": "chat.completion",
            "created": identity.created,
            "model": identity.model,
            "system_fingerprint": identity.fingerprint,
            "choices": [choice],
            "usage": usage_object(finished.usage),
        }
    )


class StreamEncoder:
    """The chunks of one answer. All that does not change is encoded once, ahead."""

    def __init__(self, identity: Identity, include_usage: bool) -> None:
        common = _encode(
            {
                "id": identity.id,
                "object": "chat.completion.chunk",
                "created": identity.created,
                "model": identity.model,
                "system_fingerprint": identity.fingerprint,
            }
        )
        self._start = b"data: " + common[:-1] + b',"choices":['
        self._delta = self._start + b'{"index":0,"delta":'
        self._content = self._delta + b'{"content":'
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._delta_end = b',"logprobs":null,"finish_reason":null}]' + self._end
        self._content_end = b"}" + self._delta_end
        self._include_usage = include_usage

    def role(self) -> bytes:
        """The first chunk, and the only one with a role."""
        return self._delta + b'{"role":"assistant","content":""}' + self._delta_end

    def text(self, text: str) -> bytes:
        return self._content + _encode(text) + self._content_end

    def reasoning(self, text: str) -> bytes:
        """Under both names that clients read."""
        encoded = _encode(text)
        delta = b'{"reasoning_content":' + encoded + b',"reasoning":' + encoded + b"}"
        return self._delta + delta + self._delta_end

    def finish(self, finished: Finished) -> bytes:
        """The last chunks and the end mark."""
        reason = _encode(_finish_reason(finished))
        last = self._delta + b'{},"logprobs":null,"finish_reason":' + reason + b"}]" + self._end
        if self._include_usage:
            last += self._start + b'],"usage":' + _encode(usage_object(finished.usage)) + b"}\n\n"
        return last + sse.DONE


def _finish_reason(finished: Finished) -> str:
    """Clients check the word against a closed list."""
    return finished.finish_reason if finished.finish_reason in _FINISH_REASONS else "stop"
