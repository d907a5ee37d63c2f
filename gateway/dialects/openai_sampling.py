"""How tokens are drawn, as OpenAI's and vLLM's clients ask for it: one table for all dialects."""

from __future__ import annotations

from gateway.dialects.fields import Fields, unsupported, wrong_type, wrong_value
from protocol.values import SamplingParams

_INT64 = 2**63
_MAX_STOPS = 1024
_MAX_STOP_CHARACTERS = 65_536

_PENALTIES = (
    ("presence_penalty", -2.0, 2.0, 0.0),
    ("frequency_penalty", -2.0, 2.0, 0.0),
    ("repetition_penalty", 0.0, 10.0, 1.0),
    ("repeat_penalty", 0.0, 10.0, 1.0),
)


def sampling(fields: Fields, default_max_tokens: int | None = None) -> SamplingParams:
    """Raises `ClusterError` with the path of the fault."""
    _refuse_what_is_not_built(fields)
    max_tokens = fields.integer("max_tokens", 1, _INT64 - 1)
    max_completion_tokens = fields.integer("max_completion_tokens", 1, _INT64 - 1)
    if max_completion_tokens is None:
        max_completion_tokens = default_max_tokens if max_tokens is None else max_tokens
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1)
    top_k = fields.integer("top_k", -1, _INT64 - 1)
    return SamplingParams(
        max_tokens=max_completion_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=max(0, top_k or 0),
        min_p=fields.number("min_p", 0, 1) or 0.0,
        stop=stop_strings(fields, "stop"),
    )


def stop_strings(fields: Fields, name: str) -> tuple[str, ...]:
    """The stop strings, bounded: the worker looks for each of them at each token."""
    stops = _strings(fields, name)
    if len(stops) > _MAX_STOPS or sum(map(len, stops)) > _MAX_STOP_CHARACTERS:
        raise wrong_value(
            name, f"must have at most {_MAX_STOPS} strings and {_MAX_STOP_CHARACTERS} characters"
        )
    return stops


def _strings(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.raw(name)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list):
        raise wrong_type(name, "a string or an array of strings", value)
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise wrong_type(f"{name}[{index}]", "a string", item)
    return tuple(dict.fromkeys(item for item in value if item))


def seed(fields: Fields) -> int | None:
    """Negative seeds are seeds too: the sign bit is dropped, the same way each time."""
    given = fields.integer("seed", -_INT64, _INT64 - 1)
    return None if given is None else given & (_INT64 - 1)


def include_usage(fields: Fields, stream: bool) -> bool:
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
    bias = fields.raw("logit_bias")
    if bias is not None and not isinstance(bias, dict):
        raise wrong_type("logit_bias", "an object", bias)
    if bias:
        raise unsupported("logit_bias", "is not available in this version; leave it out")
