"""Vectors and scores that the fake engine makes up: by words, so that texts alike are near. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Sequence

_WORD = re.compile(r"\w+")
_SPREAD = 1 << 15


def vector(text: str, dimensions: int, wanted: int | None = None) -> bytes:
    """Of length 1: the sum of what stands for each word. `wanted`: only its first so many numbers."""
    sums = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        for index, number in enumerate(_numbers(word, dimensions)):
            sums[index] += number
    kept = sums[:wanted]
    length = math.sqrt(sum(number * number for number in kept)) or 1.0
    return array("f", [number / length for number in kept]).tobytes()


def score(query: str, text: str) -> float:
    """The share of the query's words that the text has."""
    asked = set(_WORD.findall(query.lower()))
    return len(asked & set(_WORD.findall(text.lower()))) / max(1, len(asked))


def _numbers(word: str, dimensions: int) -> Sequence[float]:
    digest = hashlib.shake_128(word.encode(errors="replace")).digest(2 * dimensions)
    return [int.from_bytes(digest[at : at + 2], "little") / _SPREAD - 1.0 for at in range(0, len(digest), 2)]
