"""What OpenAI's answers tell of tokens: the sum of a whole answer, and how each chunk of a stream ends."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects.fields import Fields, wrong_value
from protocol.values import Usage

_encode = msgspec.json.encode


class UsageWanted(msgspec.Struct, frozen=True):
    """What a request's `stream_options` ask for."""

    last: bool = False
    """One more chunk with the usage; all others say null."""
    each: bool = False
    """All chunks have it, as far as it is."""


def usage_wanted(fields: Fields, stream: bool) -> UsageWanted:
    """`include_usage`, and vLLM's `continuous_usage_stats`, which counts beside it only.

    Raises `InvalidRequestError`.
    """
    options = fields.object("stream_options")
    if options is None:
        return UsageWanted()
    if not stream:
        raise wrong_value("stream_options", "is only allowed when stream is true")
    each = options.flag("continuous_usage_stats")
    last = options.flag("include_usage")
    return UsageWanted(last, last and each)


def usage_object(usage: Usage) -> dict[str, Any]:
    return _counts(usage.prompt_tokens, usage.completion_tokens) | {
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


class ChunkEnd:
    """How the chunks of one stream end; `now` is the end of the next one."""

    def __init__(self, wanted: UsageWanted) -> None:
        self.each = wanted.each
        """Each chunk tells counts."""
        self._prompt_tokens = 0
        self._completion_tokens: dict[int, int] = {}
        self.now = b',"usage":null}\n\n' if wanted.last else b"}\n\n"

    def start(self, usage: Usage) -> None:
        self._prompt_tokens = usage.prompt_tokens
        self._tell()

    def count(self, index: int, completion_tokens: int) -> None:
        """So many tokens one of the answers has by now. Only where each chunk tells them."""
        self._completion_tokens[index] = max(completion_tokens, self._completion_tokens.get(index, 0))
        self._tell()

    def _tell(self) -> None:
        if self.each:
            counts = _counts(self._prompt_tokens, sum(self._completion_tokens.values()))
            self.now = b',"usage":%b}\n\n' % _encode(counts)


def _counts(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
