"""An answer as a row of blocks, one open at a time: reasoning, text, a tool call. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from gateway.pieces import Piece


class Kind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    TOOL_CALL = "tool_call"


class Step(Enum):
    """What happens to a block."""

    OPEN = "open"
    ADD = "add"
    CLOSE = "close"


@dataclass(eq=False)
class Block:
    """One of an answer's blocks. `number` counts tool calls, `position` all blocks."""

    kind: Kind
    position: int
    number: int = 0
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What was said, thought, or given as arguments, so far."""
        return "".join(self.parts)

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of a call as an object, which some clients need; text that is none as it stands."""
        try:
            found = msgspec.json.decode(self.text or "{}")
        except (msgspec.DecodeError, RecursionError):
            found = None
        return found if isinstance(found, dict) else {"arguments": self.text}


class Blocks:
    """Takes pieces and says what they do to which block; remembers all blocks."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None

    def feed(self, piece: Piece) -> Iterator[tuple[Step, Block, str]]:
        """The steps, each with the text that it adds."""
        for kind, text in ((Kind.REASONING, piece.reasoning), (Kind.TEXT, piece.text)):
            if text:
                yield from self._add(kind, text)
        for call in piece.tool_calls:
            yield from self._add(Kind.TOOL_CALL, call.arguments, call.index, call.name)

    def end(self, *, never_empty: bool = False) -> Iterator[tuple[Step, Block, str]]:
        """Close what is open; `never_empty`: an answer without any block gets one of no text."""
        if never_empty and not self.all:
            yield from self._add(Kind.TEXT, "")
        yield from self._close()

    def _add(
        self, kind: Kind, text: str, number: int = 0, name: str = ""
    ) -> Iterator[tuple[Step, Block, str]]:
        block = self._open
        if block is None or (block.kind, block.number) != (kind, number):
            yield from self._close()
            block = Block(kind, len(self.all), number, name)
            self.all.append(block)
            self._open = block
            yield Step.OPEN, block, ""
        if text:
            block.parts.append(text)
            yield Step.ADD, block, text

    def _close(self) -> Iterator[tuple[Step, Block, str]]:
        if self._open is not None:
            block, self._open = self._open, None
            yield Step.CLOSE, block, ""
