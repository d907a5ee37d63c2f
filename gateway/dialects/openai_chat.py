"""OpenAI's chat completions, the request: bytes to a checked `ChatRequest`.

What a later version will bring is refused by name rather than ignored in silence.
"""

from __future__ import annotations

from typing import Any

from gateway.dialects.base import Asked
from gateway.dialects.fields import (
    Body,
    Fields,
    unsupported,
    wrong_type,
    wrong_value,
)
from gateway.dialects.openai_messages import parse_messages
from gateway.dialects.openai_tools import parse_tools
from gateway.dialects.template_options import parse_template_options
from protocol.values import SamplingParams

_INT64 = 2**63
_MAX_STOPS = 1024
_MAX_STOP_CHARACTERS = 65_536

_NOT_YET = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "json_schema",
    "grammar",
    "audio",
)
_PENALTIES = (
    ("presence_penalty", -2.0, 2.0, 0.0),
    ("frequency_penalty", -2.0, 2.0, 0.0),
    ("repetition_penalty", 0.0, 10.0, 1.0),
    ("repeat_penalty", 0.0, 10.0, 1.0),
)
_NOT_AVAILABLE = "is not available in this version; leave it out"


class ChatRequest(Asked, frozen=True, kw_only=True):
    """One chat request, checked."""

    include_usage: bool = False


def parse(body: bytes) -> ChatRequest:
    """The request in a body. Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    model = fields.text("model")
    messages = parse_messages(fields)
    stream = fields.flag("stream")
    include_usage = _include_usage(fields, stream)
    _refuse_what_is_not_built(fields)
    use = parse_tools(fields)
    return ChatRequest(
        model=model,
        messages=messages,
        sampling=_sampling(fields),
        seed=_seed(fields),
        stream=stream,
        n=fields.integer("n", 1, 128) or 1,
        include_usage=include_usage,
        tools=use.tools,
        tool_choice=use.choice,
        parallel_tool_calls=use.parallel,
        template_options=parse_template_options(fields),
    )


def _sampling(fields: Fields) -> SamplingParams:
    max_tokens = fields.integer("max_tokens", 1, _INT64 - 1)
    max_completion_tokens = fields.integer("max_completion_tokens", 1, _INT64 - 1)
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1)
    top_k = fields.integer("top_k", -1, _INT64 - 1)
    return SamplingParams(
        max_tokens=max_tokens if max_completion_tokens is None else max_completion_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(0, top_k or 0),
        min_p=fields.number("min_p", 0, 1) or 0.0,
        stop=_stop(fields),
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    """The stop strings, bounded: the worker looks for each of them at each token."""
    stops = _stop_strings(fields)
    if len(stops) > _MAX_STOPS or sum(map(len, stops)) > _MAX_STOP_CHARACTERS:
        raise wrong_value(
            "stop", f"must have at most {_MAX_STOPS} strings and {_MAX_STOP_CHARACTERS} characters"
        )
    return stops


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    value = fields.raw("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise wrong_type(f"stop[{index}]", "a string", item)
    return tuple(dict.fromkeys(item for item in value if item))


def _seed(fields: Fields) -> int | None:
    """Negative seeds are seeds too: the sign bit is dropped, the same way each time."""
    seed = fields.integer("seed", -_INT64, _INT64 - 1)
    return None if seed is None else seed & (_INT64 - 1)


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong_value("stream_options", "is only allowed when stream is true")
    return options.flag("include_usage")


def _refuse_what_is_not_built(fields: Fields) -> None:
    for name, low, high, neutral in _PENALTIES:
        if fields.number(name, low, high) not in (None, neutral):
            raise unsupported(name, f"is not available in this version; leave it out, or at {neutral:g}")
    _refuse_logprobs(fields)
    _refuse_functions(fields)
    _refuse_formats(fields)
    for name in _NOT_YET:
        if fields.raw(name) is not None:
            raise unsupported(name, _NOT_AVAILABLE)


def _refuse_logprobs(fields: Fields) -> None:
    wanted = fields.flag("logprobs")
    if fields.integer("top_logprobs", 0, 20) is not None and not wanted:
        raise wrong_value("top_logprobs", "is only allowed when logprobs is true")
    if wanted:
        raise unsupported("logprobs", _NOT_AVAILABLE)
    bias = fields.raw("logit_bias")
    if bias is not None and not isinstance(bias, dict):
        raise wrong_type("logit_bias", "an object", bias)
    if bias:
        raise unsupported("logit_bias", _NOT_AVAILABLE)


def _refuse_functions(fields: Fields) -> None:
    """The older form of tools. Who asks in it expects its answers too."""
    wanted: Any = fields.raw("function_call")
    if wanted is not None and not isinstance(wanted, str | dict):
        raise wrong_type("function_call", "a string or an object", wanted)
    if fields.items("functions") and wanted != "none":
        raise unsupported("functions", "is not available; use tools")
    if wanted not in (None, "none", "auto"):
        raise wrong_value("function_call", "needs functions, which are not available; use tools")


def _refuse_formats(fields: Fields) -> None:
    response_format = fields.object("response_format")
    if response_format is not None:
        kind = response_format.text("type")
        if kind not in ("text", "json_object", "json_schema"):
            raise wrong_value(response_format.path("type"), "must be text, json_object or json_schema")
        if kind != "text":
            raise unsupported(
                "response_format", 'is available as {"type": "text"} only in this version; leave it out'
            )
    modalities = fields.items("modalities")
    if modalities and modalities != ["text"]:
        raise unsupported("modalities", 'can only be ["text"]', reason="unsupported_value")
