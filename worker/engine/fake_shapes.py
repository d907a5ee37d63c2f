"""A short text that a fake engine can say where its answer has to have a shape."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from worker.engine.output import PromptError
from worker.engine.shape import Shape
from worker.engine.structured import END_OF_BYTES, Guide, for_bytes
from worker.parsers.base import REASONING, Syntax

_LONGEST = 2048
_TRIALS = 32
_ENDS = b'"}]/'
_SPACE = b"\\ \t\r\n"


def short_text(shape: Shape, syntax: Syntax, *, in_reasoning: bool) -> str:
    """A text of that shape, always the same, without any reasoning. Raises `PromptError`."""
    if shape.form is not None:
        shape = replace(shape, functions=())
    own = shape.syntax(syntax)
    thought = own.marks(REASONING)
    silent = {state: tuple(e for e in edges if e[1] != REASONING) for state, edges in own.edges.items()}
    guide = for_bytes().guide(shape, replace(own, edges=silent))
    text = _first_found(guide)
    if text is None:
        words = "the fake engine finds no short answer of this shape"
        raise PromptError(words, "unsupported", param=shape.field)
    return f"{thought[1]}{text}" if in_reasoning and thought is not None else text


def _first_found(guide: Guide) -> str | None:
    """By what looks shortest, and where that has no end, by luck."""
    found = _walk(guide, lambda allowed: min(allowed, key=_rank))
    for trial in range(_TRIALS):
        if found is not None:
            return found
        luck = random.Random(trial)  # noqa: S311 (the same in every run)
        found = _walk(guide, luck.choice)
    return found


def _walk(guide: Guide, choose: Callable[[list[int]], int]) -> str | None:
    """Byte by byte to where the text may end; None where that is far."""
    said = bytearray()
    while len(said) < _LONGEST:
        guide.advance(said)
        bits = np.flatnonzero(np.unpackbits(guide.allowed().view(np.uint8), bitorder="little"))
        if guide.over or END_OF_BYTES in bits:
            return said.decode(errors="replace")
        allowed = bits.tolist()
        said.append(choose([byte for byte in allowed if byte not in _SPACE] or allowed))
    return None


def _rank(byte: int) -> tuple[bool, int]:
    return byte not in _ENDS, _ENDS.find(byte) if byte in _ENDS else byte
