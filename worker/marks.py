"""Marks in streamed text, wherever the pieces are cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """What one piece brought. Without a mark, `after` is empty."""

    before: str
    """Text that belongs to no mark."""
    mark: str | None
    after: str
    """What follows the mark; not looked at yet."""


class MarkFinder:
    """Finds the first mark that becomes complete, and holds back what may begin one.

    What was told depends on the whole text so far only, not on how it was cut into pieces. Of marks
    that become complete with the same character, the longest counts.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(mark for mark in marks if mark)
        self._firsts = frozenset(mark[0] for mark in self._marks)
        self._held = ""

    def passes(self, text: str) -> bool:
        """Whether nothing is held and no mark begins in the text: `feed` would only give it back."""
        return not self._held and self._firsts.isdisjoint(text)

    def feed(self, text: str) -> Found:
        if not self._marks:
            return Found(text, None, "")
        text = self._held + text
        found = [(text.find(mark) + len(mark), mark) for mark in self._marks if mark in text]
        if found:
            end, mark = min(found, key=lambda match: (match[0], -len(match[1])))
            self._held = ""
            return Found(text[: end - len(mark)], mark, text[end:])
        visible = len(text) - max(_beginning(text, mark) for mark in self._marks)
        self._held = text[visible:]
        return Found(text[:visible], None, "")

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, mark: str) -> int:
    """The length of the longest tail of the text that is a proper beginning of the mark."""
    at = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while at >= 0:
        if mark.startswith(text[at:]):
            return len(text) - at
        at = text.find(mark[0], at + 1)
    return 0
