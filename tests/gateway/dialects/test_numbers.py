"""FC-11, FC-12, FC-13: every number of every dialect, and every value that is none of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.dialects import anthropic_messages, openai_chat, openai_completions, openai_responses
from gateway.dialects.base import Asked
from gateway.dialects.response_store import ResponseStore
from protocol.errors import ClusterError

TURNS = [{"role": "user", "content": "hi"}]
DIALECTS: dict[str, tuple[Callable[[bytes], Asked], dict[str, Any]]] = {
    "chat": (openai_chat.parse, {"messages": TURNS}),
    "completions": (openai_completions.parse, {"prompt": "hi"}),
    "messages": (anthropic_messages.parse, {"messages": TURNS, "max_tokens": 5}),
    "responses": (lambda body: openai_responses.parse(body, ResponseStore()), {"input": "hi"}),
}
SHARED = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, None),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (1e-9, 10),
    "repeat_penalty": (1e-9, 10),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 0.5),
    "repetition_context_size": (0, None),
}
"""Fields that all dialects take, with their ranges."""
OWN = {
    "chat": ("max_tokens", "max_completion_tokens", "n", "seed", "top_logprobs", "min_tokens"),
    "completions": ("max_tokens", "n", "seed", "logprobs", "best_of", "min_tokens"),
    "messages": ("max_tokens",),
    "responses": ("max_output_tokens",),
}
CASES = [(dialect, field) for dialect in DIALECTS for field in (*SHARED, *OWN[dialect])]
NO_NUMBERS = ['"1"', '"NaN"', "true", "[1]", "{}", '""']
NO_JSON = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "01", "+1", ".5"]


def outcome(dialect: str, field: str, value: str) -> str | None:
    """None when it is taken, else the reason of the refusal; the field has to be named."""
    parse, least = DIALECTS[dialect]
    body = json.dumps({"model": "m", **{k: v for k, v in least.items() if k != field}})
    refusal = None
    try:
        parse(f'{body[:-1]}, "{field}": {value}}}'.encode())
    except ClusterError as error:
        refusal = error
    if refusal is None:
        return None
    assert refusal.code in ("invalid_request", "unsupported")
    assert refusal.param in (field, None)
    return refusal.reason


@pytest.mark.parametrize(("dialect", "field"), CASES)
def test_what_is_no_number_is_refused_by_name(dialect: str, field: str):
    for value in NO_NUMBERS:
        assert outcome(dialect, field, value) == "invalid_type", value
    for value in NO_JSON:
        assert outcome(dialect, field, value) == "invalid_json", value


@pytest.mark.parametrize(("dialect", "field"), CASES)
def test_huge_numbers_are_taken_or_refused(dialect: str, field: str):
    for value in ("-1", "0", "1e308", "-1e308", "1e-300", "9" * 400, "9223372036854775808"):
        assert outcome(dialect, field, value) in (
            None,
            "invalid_value",
            "invalid_type",
            "invalid_json",
            "unsupported_parameter",
        ), value


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("field", SHARED)
def test_the_same_range_holds_in_every_dialect(dialect: str, field: str):
    low, high = SHARED[field]
    assert outcome(dialect, field, "null") is None
    for value in filter(None, (low, high)):
        assert outcome(dialect, field, repr(value)) is None, value
    assert outcome(dialect, field, repr(low - 2)) == "invalid_value"
    if high is not None:
        assert outcome(dialect, field, repr(high + 1)) == "invalid_value"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "bias",
    ['{"AI": -100}', '{"-1": 5}', '{"99999999999": 1}', '{"5": "x"}', '{"5": 1e400}', '{"5": 101}', "[]"],
)
def test_a_bias_of_what_is_no_token_is_refused(dialect: str, bias: str):
    parse, least = DIALECTS[dialect]
    body = json.dumps({"model": "m", **least})
    with pytest.raises(ClusterError):
        parse(f'{body[:-1]}, "logit_bias": {bias}}}'.encode())
