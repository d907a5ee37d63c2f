"""What the dialects have in common whose requests are answered in one piece: vectors, and scores."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from gateway.dialects.base import Identity
from gateway.dialects.fields import wrong_type, wrong_value
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Embed, Score
from protocol.values import Usage, Vectors

T = TypeVar("T")

MOST_TEXTS = 2048
_NUMBER_BYTES = 4


class Posed(msgspec.Struct, frozen=True, kw_only=True):
    """One request, checked."""

    model: str | None
    """None: the only one for its task."""
    request: Embed | Score
    """Without what the gateway adds."""
    level: int = 0
    """The class in the queue with which the client is content, where its key has an earlier one."""


class Computed(Protocol):
    """One way to speak HTTP about them."""

    def parse(self, body: bytes) -> Posed:
        """Raises `ClusterError`."""

    def whole(self, posed: Any, identity: Identity, value: Any, usage: Usage) -> Iterator[bytes]:
        """The body of the answer, in pieces. `value` is what the worker says. Raises `ClusterError`."""


def text_at(values: list[Any], index: int, path: str) -> str:
    """Raises `InvalidRequestError` for anything else."""
    if isinstance(values[index], str):
        return str(values[index])
    raise wrong_type(f"{path}[{index}]", "a string", values[index])


def not_empty(text: str, path: str) -> str:
    """Raises `InvalidRequestError`."""
    if not text:
        raise wrong_value(path, "must not be empty")
    return text


def check_number(values: list[Any], path: str) -> None:
    """Raises `InvalidRequestError`."""
    if not values:
        raise wrong_value(path, "must not be empty")
    if len(values) > MOST_TEXTS:
        raise wrong_value(path, f"has {len(values)} items; at most {MOST_TEXTS} are taken at once")


def checked(value: Any, kind: type[T]) -> T:
    """What a worker says, as that kind of thing. Raises `ClusterError`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        words = f"the worker's result cannot be read: {error}"
        raise ClusterError(ErrorCode.INTERNAL_ERROR, words) from error


def check_count(found: int, asked: int) -> None:
    """Raises `ClusterError` where a worker says more or less than it was asked for."""
    if found != asked:
        words = f"the worker's result has {found} entries, not {asked}"
        raise ClusterError(ErrorCode.INTERNAL_ERROR, words)


def vectors(value: Any, asked: int) -> Iterator[bytes]:
    """The vectors that a worker says, as bytes. Raises `ClusterError` unless there are so many."""
    found = checked(value, Vectors)
    size = found.dimensions * _NUMBER_BYTES
    check_count(len(found.data), asked * size)
    return (found.data[at : at + size] for at in range(0, asked * size, size))


def as_array(vector: bytes) -> bytes:
    """Its numbers in JSON."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return msgspec.json.encode(numbers.tolist())


def usage_object(usage: Usage) -> dict[str, int]:
    return {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}


def listed(
    before: dict[str, Any], name: str, entries: Iterable[bytes], after: dict[str, Any]
) -> Iterator[bytes]:
    """An object with a long list in it, in pieces."""
    yield msgspec.json.encode(before)[:-1] + b',"%b":[' % name.encode()
    for index, entry in enumerate(entries):
        yield b"," + entry if index else entry
    yield b"]," + msgspec.json.encode(after)[1:]
