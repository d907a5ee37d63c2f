"""Fields of a body, and the words of what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.fields import Body
from gateway.dialects.formats import parse_formats
from protocol.errors import InvalidRequestError


def refused(body: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        Body(body)
    return caught.value


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (2**63, 0, 2**63 - 1, "n must be at most 9223372036854775807, not 9223372036854775808"),
        (-(2**63) - 1, -(2**63), 1, "n must be at least -9223372036854775808, not -9223372036854775809"),
        (2000000, 0, 1000000, "n must be at most 1000000, not 2000000"),
    ],
)
def test_limits_are_told_in_whole(value: int, low: int, high: int, words: str):
    with pytest.raises(InvalidRequestError, match=f"^{words}$"):
        Body(b'{"n": %d}' % value).integer("n", low, high)


def test_a_limit_of_a_number_is_told_as_it_is():
    with pytest.raises(InvalidRequestError, match=r"^n must be at most 0.5, not 0.75$"):
        Body(b'{"n": 0.75}').number("n", 0, 0.5)


@pytest.mark.parametrize("letter", ["a", "é", "\n"])
def test_a_short_field_may_have_exactly_a_million_bytes(letter: str):
    text = letter * (1_000_000 // len(letter.encode()))
    for ascii_only in (False, True):
        body = json.dumps({"prompt_cache_key": text}, ensure_ascii=ascii_only).encode()
        assert Body(body).text("prompt_cache_key") == text
        longer = json.dumps({"prompt_cache_key": text + "a"}, ensure_ascii=ascii_only).encode()
        with pytest.raises(InvalidRequestError, match="must have at most 1000000 bytes"):
            Body(longer).text("prompt_cache_key")


def test_a_list_counts_as_it_was_sent():
    assert len(Body(b'{"stop": [%s"a"]}' % (b'"a",' * 249_998)).items("stop") or []) == 249_999
    with pytest.raises(InvalidRequestError, match="must have at most 1000000 bytes"):
        Body(b'{"stop": [%s"a"]}' % (b'"a",' * 250_000)).items("stop")


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (r"\ud800", "ud800"),
        (r"\uD800 and more", "uD800"),
        (r"\udc00", "udc00"),
        (r"\ud83d\ud83d\ude00", "ud83d"),
        (r"\ud83d\ude00\ude00", "ude00"),
        (r"\\\ud800", "ud800"),
    ],
)
def test_half_a_surrogate_pair_is_named(text: str, half: str):
    for body in ('{"a": "%s"}', '{"%s": 1}', '{"a": ["%s", 2]}'):
        error = refused((body % text).encode())
        assert f"\\{half} is half a surrogate pair" in error.message
        assert error.reason == "invalid_json"
    schema: Any = json.dumps({"guided_json": f'["{text}"]'})
    with pytest.raises(InvalidRequestError, match="half a surrogate pair"):
        parse_formats(Body(schema.encode()))


@pytest.mark.parametrize("body", [b'{"a": "\\ud83d\\ude00', b'{"a": "\\\\ud800', b'{"a": "\\ud8'])
def test_what_is_cut_off_is_called_so(body: bytes):
    assert "truncated" in refused(body).message


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "+1", ".5"])
def test_fc_11_a_number_that_is_none_is_refused_with_the_name_of_its_field(value: str):
    with pytest.raises(InvalidRequestError, match=r"in the value of temperature$") as caught:
        Body(f'{{"model": "m", "temperature" : {value}, "n": 1}}'.encode()).number("temperature")
    assert (caught.value.param, caught.value.reason) == ("temperature", "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b'"x"'])
def test_another_value_than_an_object_is_called_so(body: bytes):
    assert refused(body).message == "the body must be a JSON object"
