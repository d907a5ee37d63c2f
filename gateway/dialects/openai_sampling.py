"""How tokens are drawn, as OpenAI's and vLLM's clients ask for it: one table for all dialects."""

from __future__ import annotations

from gateway.dialects.fields import Fields, wrong_value
from protocol.values import SamplingParams

_INT64 = 2**63


def sampling(fields: Fields, max_tokens: int | None = None) -> SamplingParams:
    """`max_tokens` is for requests that name none. Raises `ClusterError`."""
    given = fields.integer("max_tokens", 1, _INT64 - 1)
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1)
    return SamplingParams(
        max_tokens=max_tokens if given is None else given,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
    )


def seed(fields: Fields) -> int | None:
    found = fields.integer("seed", -_INT64, _INT64 - 1)
    return None if found is None else found & (_INT64 - 1)


def include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong_value("stream_options", "is only allowed when stream is true")
    return options.flag("include_usage")
