"""OpenAI's chat completions, the request: bytes to a checked `ChatRequest`.

What a later version will bring is refused by name rather than ignored in silence.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects import openai_rows as rows
from gateway.dialects.base import Asked
from gateway.dialects.chunk_usage import UsageWanted, usage_wanted
from gateway.dialects.fields import (
    Body,
    Fields,
    unsupported,
    wrong_type,
    wrong_value,
)
from gateway.dialects.formats import parse_formats
from gateway.dialects.openai_messages import parse_messages
from gateway.dialects.openai_sampling import cache_key, level, sampling, seed
from gateway.dialects.openai_tools import parse_tools
from gateway.dialects.template_options import parse_template_options


class ChatRequest(Asked, frozen=True, kw_only=True):
    """One chat request, checked."""

    usage: UsageWanted = UsageWanted()
    service_tier: str | None = None
    """What the answer says of it, where the request does."""


def parse(body: bytes) -> ChatRequest:
    """The request in a body. Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    model = fields.text("model")
    messages = parse_messages(fields)
    stream = fields.flag("stream")
    usage = usage_wanted(fields, stream)
    _refuse_functions(fields)
    _refuse_sound(fields)
    use = parse_tools(fields)
    return ChatRequest(
        model=model,
        messages=messages,
        sampling=msgspec.structs.replace(sampling(fields), logprobs=_logprobs(fields)),
        seed=seed(fields),
        stream=stream,
        n=rows.N.integer(fields) or 1,
        usage=usage,
        tools=use.tools,
        tool_choice=use.choice,
        parallel_tool_calls=use.parallel,
        response_format=parse_formats(fields),
        template_options=parse_template_options(fields),
        cache_key=cache_key(fields),
        service_tier="default" if fields.text("service_tier") else None,
        level=level(fields),
    )


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs")
    alternatives = rows.TOP_LOGPROBS.integer(fields)
    if alternatives is not None and not wanted:
        raise wrong_value("top_logprobs", "is only allowed when logprobs is true")
    return alternatives or 0 if wanted else None


def _refuse_functions(fields: Fields) -> None:
    """The older form of tools. Who asks in it expects its answers too."""
    wanted: Any = fields.raw("function_call")
    if wanted is not None and not isinstance(wanted, str | dict):
        raise wrong_type("function_call", "a string or an object", wanted)
    if fields.items("functions") and wanted != "none":
        raise unsupported("functions", "is not available; use tools")
    if wanted not in (None, "none", "auto"):
        raise wrong_value("function_call", "needs functions, which are not available; use tools")


def _refuse_sound(fields: Fields) -> None:
    if fields.raw("audio") is not None:
        raise unsupported("audio", "is not available; leave it out")
    modalities = fields.items("modalities")
    if modalities and modalities != ["text"]:
        raise unsupported("modalities", 'can only be ["text"]', reason="unsupported_value")
