"""How tokens are drawn, as OpenAI's and vLLM's clients ask for it: one table for all dialects."""

from __future__ import annotations

import re

from gateway.dialects.fields import Fields, wrong_type, wrong_value
from protocol.values import SamplingParams

_INT64 = 2**63
_MAX_STOPS = 1024
_MAX_STOP_CHARACTERS = 65_536
_MOST_ID = 2**31 - 1
"""Whether a model has a token is for its worker to say; this bounds what is sent to it."""
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def sampling(
    fields: Fields, default_max_tokens: int | None = None, *, least_tokens: int = 1
) -> SamplingParams:
    """All but `logprobs`, which dialects write differently. Raises `ClusterError` with the field at fault."""

    def number(name: str, low: float, high: float, default: float) -> float:
        found = fields.number(name, low, high)
        return default if found is None else found

    max_tokens = fields.integer("max_tokens", least_tokens, _INT64 - 1)
    max_completion_tokens = fields.integer("max_completion_tokens", least_tokens, _INT64 - 1)
    if max_completion_tokens is None:
        max_completion_tokens = default_max_tokens if max_tokens is None else max_tokens
    return SamplingParams(
        max_tokens=max_completion_tokens,
        temperature=number("temperature", 0, 2, 1.0),
        top_p=number("top_p", 0, 1, 1.0),
        top_k=max(0, fields.integer("top_k", -1, _INT64 - 1) or 0),
        min_p=number("min_p", 0, 1, 0.0),
        stop=stop_strings(fields, "stop"),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=_min_tokens(fields, max_completion_tokens),
        stop_token_ids=_stop_token_ids(fields),
        presence_penalty=number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=number("frequency_penalty", -2, 2, 0.0),
        repetition_penalty=_repetition_penalty(fields),
        repetition_context_size=fields.integer("repetition_context_size", 0, _INT64 - 1) or 0,
        logit_bias=_logit_bias(fields),
        xtc_probability=number("xtc_probability", 0, 1, 0.0),
        xtc_threshold=number("xtc_threshold", 0, 0.5, 0.1),
    )


def _min_tokens(fields: Fields, max_tokens: int | None) -> int:
    found = fields.integer("min_tokens", 0, _INT64 - 1) or 0
    if max_tokens is not None and found > max_tokens:
        raise wrong_value("min_tokens", f"is {found}, more than the limit of {max_tokens}")
    return found


def _repetition_penalty(fields: Fields) -> float:
    """vLLM's name, and llama.cpp's."""
    for name in ("repetition_penalty", "repeat_penalty"):
        found = fields.number(name, 0, 10)
        if found == 0:
            raise wrong_value(name, "must be above 0")
        if found is not None:
            return found
    return 1.0


def _logit_bias(fields: Fields) -> dict[int, float]:
    given = fields.object("logit_bias")
    if given is None:
        return {}
    bias = {}
    for name in given.names():
        if not _ID.fullmatch(name) or int(name) > _MOST_ID:
            raise wrong_value("logit_bias", f"has the key {name[:20]!r}, which is no token id")
        found = given.number(name, -100, 100)
        if found is not None:
            bias[int(name)] = found
    return bias


def _stop_token_ids(fields: Fields) -> tuple[int, ...]:
    found = fields.items("stop_token_ids") or []
    for index, item in enumerate(found):
        if isinstance(item, bool) or not isinstance(item, int):
            raise wrong_type(f"stop_token_ids[{index}]", "an integer", item)
        if not 0 <= item <= _MOST_ID:
            raise wrong_value(f"stop_token_ids[{index}]", "is no token id")
    return tuple(dict.fromkeys(found))


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
