"""Typed readers for the fields of a JSON body. Each error names the field by its path.

A field that is null counts as absent, fields that nobody reads are ignored.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from protocol.errors import ClusterError, ErrorCode, InvalidRequestError

_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


_SHORT = 1_000_000
"""Bytes of a field that holds no conversation."""
_SENT = ("tools", "chat_template_kwargs", "documents")
"""Fields that go to the worker as they are."""
_HUGE = re.compile(rb"[0-9]{19}")
"""Digits of an integer that may be too large to be sent."""
_HALF = re.compile(
    rb"(?<!\\)(?:\\\\)*\\"
    rb"(u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F][0-9a-fA-F]{2}))"
)
"""Half a surrogate pair, as an escape."""
_NAME_AT_END = re.compile(rb'"(\w{1,64})"\s*:\s*-?$', re.ASCII)
_MOST = int(sys.float_info.max)
_LONG_FIELDS = ("messages", "system", "prompt", "input", "instructions")

_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def name_of(value: object) -> str:
    """What a JSON value is, in words."""
    return _NAMES[type(value)]


def wrong_type(path: str, expected: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path} must be {expected}, not {name_of(value)}", param=path, reason="invalid_type"
    )


def wrong_value(path: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} {message}", param=path)


def missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} is missing", param=path, reason="missing_required_parameter")


def unsupported(path: str, message: str, *, reason: str = "unsupported_parameter") -> ClusterError:
    return ClusterError(ErrorCode.UNSUPPORTED, f"{path} {message}", param=path, reason=reason)


def token_ids(values: list[Any], path: str) -> tuple[int, ...]:
    """Raises `InvalidRequestError` for what cannot be one; only a worker knows its model's own range."""
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(f"{path}[{index}]", "a token id", value)
        if not 0 <= value < 2**63:
            raise wrong_value(f"{path}[{index}]", "is no token id")
    return tuple(values)


def _decode_checked(body: bytes) -> dict[str, msgspec.Raw]:
    body.decode()  # what is passed over has to be UTF-8 too
    try:
        return _decode_raw(body)
    except msgspec.ValidationError:
        raise InvalidRequestError("the body must be a JSON object", reason="invalid_json") from None


def why_no_json(error: Exception, source: bytes | str) -> str:
    """What is wrong with it, in words: of half a surrogate pair, the decoder says something else."""
    half = _HALF.search(source.encode(errors="replace") if isinstance(source, str) else source)
    return str(error) if half is None else f"\\{half[1].decode()} is half a surrogate pair, and no character"


def _name_before(error: Exception, source: bytes) -> str | None:
    """The name of the value that is no JSON, such as `NaN`, where it stands right before it."""
    place = re.search(r"\(byte (\d+)\)", str(error))
    end = 0 if place is None else int(place[1])
    found = _NAME_AT_END.search(source, max(0, end - 100), end)
    return None if found is None else found[1].decode()


def _decoded(decode: Callable[[Any], Any], source: bytes | msgspec.Raw, name: str | None = None) -> Any:
    """`name`: the field whose value it is."""
    try:
        return decode(source)
    except (msgspec.MsgspecError, UnicodeError) as error:
        name = name or _name_before(error, bytes(source))
        words = f"the body is not valid JSON: {why_no_json(error, bytes(source))}"
        if name is not None:
            words = f"{words}, in the value of {name}"
        raise InvalidRequestError(words, param=name, reason="invalid_json") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply", reason="invalid_json") from None


class Fields:
    """The fields of one JSON object, with the path that leads to it."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._prefix = f"{path}." if path else ""

    def path(self, name: str) -> str:
        return self._prefix + name

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def names(self) -> list[str]:
        return list(self._values)

    def text(self, name: str) -> str | None:
        value = self.raw(name)
        if value is None or isinstance(value, str):
            return value
        raise wrong_type(self.path(name), "a string", value)

    def flag(self, name: str) -> bool:
        """False where absent."""
        value = self.raw(name)
        if value is None:
            return False
        if isinstance(value, bool):
            return value
        raise wrong_type(self.path(name), "a boolean", value)

    def items(self, name: str) -> list[Any] | None:
        value = self.raw(name)
        if value is None or isinstance(value, list):
            return value
        raise wrong_type(self.path(name), "an array", value)

    def object(self, name: str) -> Fields | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, dict):
            return Fields(value, self.path(name))
        raise wrong_type(self.path(name), "an object", value)

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.path(name), "a number", value)
        self._check_range(name, value, low, high)
        return float(value)

    def integer(self, name: str, low: int | None = None, high: int | None = None) -> int | None:
        """An integer; `256.0` is one too."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.path(name), "an integer", value)
        self._check_range(name, value, low, high)
        return value

    def _check_range(self, name: str, value: float, low: float | None, high: float | None) -> None:
        if low is not None and value < low:
            raise wrong_value(self.path(name), f"must be at least {low}, not {_shown(value)}")
        if high is not None and value > high:
            raise wrong_value(self.path(name), f"must be at most {high}, not {_shown(value)}")


class Body(Fields):
    """The JSON object in a request's body. Raises `InvalidRequestError` for anything else.

    Only what is asked for is built: fields that nobody reads cost no more than to pass over them.
    """

    def __init__(self, body: bytes, *, long: Collection[str] = _LONG_FIELDS) -> None:
        """`long`: fields that hold what the request is about, of any length."""
        super().__init__(_decoded(_decode_checked, body))
        self._long = long

    def raw(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            return None
        if name in self._long:
            return _decoded(msgspec.json.decode, value, name)
        size = len(memoryview(value))
        is_text = bytes(memoryview(value)[:1]) == b'"'
        if size > _SHORT and not is_text:
            raise _too_long(name)
        found = _decoded(msgspec.json.decode, value, name)
        if size > _SHORT and len(found.encode()) > _SHORT:  # a text counts without quotes and escapes
            raise _too_long(name)
        return _sendable(found) if name in _SENT and _HUGE.search(value) else found


def _too_long(name: str) -> InvalidRequestError:
    return wrong_value(name, f"must have at most {_SHORT} bytes")


def _sendable(value: Any) -> Any:
    """Integers beyond 64 bits, such as a schema's bounds, as floats: no message could carry them."""
    if isinstance(value, dict):
        return {name: _sendable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(max(-_MOST, min(_MOST, value)))
    return value


def _shown(value: float) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:20] + "…"
