"""How tokens are drawn, as OpenAI's and vLLM's clients ask for it: one table for all dialects."""

from __future__ import annotations

import re
from typing import Any

from gateway.dialects import openai_rows as rows
from gateway.dialects.fields import Fields, wrong_type, wrong_value
from protocol.api_keys import PRIORITIES
from protocol.values import SamplingParams

BATCH = PRIORITIES.index("batch")
_MAX_STOPS = 1024
_MAX_STOP_CHARACTERS = 65_536
_MOST_ID = 2**31 - 1
"""Whether a model has a token is for its worker to say; this bounds what is sent to it."""
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def sampling(
    fields: Fields, default_max_tokens: int | None = None, *, least_tokens: int = 1, stop: str = "stop"
) -> SamplingParams:
    """All but `logprobs`, which dialects write differently. Raises `ClusterError` with the field at fault.

    `stop` is the name of the field with the stop strings.
    """

    numbers: dict[str, Any] = {row.name: row.number(fields) for row in rows.NUMBERS}
    llama_penalty = numbers.pop("repeat_penalty")
    if fields.raw("repetition_penalty") is None:
        numbers["repetition_penalty"] = llama_penalty
    max_tokens = rows.MAX_TOKENS.integer(fields, least_tokens)
    max_completion_tokens = rows.MAX_COMPLETION_TOKENS.integer(fields, least_tokens)
    if max_completion_tokens is None:
        max_completion_tokens = default_max_tokens if max_tokens is None else max_tokens
    return SamplingParams(
        **numbers,
        max_tokens=max_completion_tokens,
        top_k=max(0, rows.TOP_K.integer(fields) or 0),
        stop=stop_strings(fields, stop),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=_min_tokens(fields, max_completion_tokens),
        stop_token_ids=_stop_token_ids(fields),
        repetition_context_size=rows.REPETITION_CONTEXT.integer(fields) or 0,
        logit_bias=_logit_bias(fields),
    )


def _min_tokens(fields: Fields, max_tokens: int | None) -> int:
    found = rows.MIN_TOKENS.integer(fields) or 0
    if max_tokens is not None and found > max_tokens:
        raise wrong_value("min_tokens", f"is {found}, more than the limit of {max_tokens}")
    return found


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
    given = rows.SEED.integer(fields)
    return None if given is None else given & rows.MOST


def cache_key(fields: Fields) -> str:
    """What the client calls requests that begin alike: as much of it as tells keys apart."""
    return (fields.text("prompt_cache_key") or "")[:256]


def level(fields: Fields) -> int:
    """The class in the queue with which the client is content; 0: with any."""
    asked = max(0, rows.PRIORITY.integer(fields) or 0)
    return BATCH if fields.text("service_tier") == "flex" else min(asked, BATCH)
