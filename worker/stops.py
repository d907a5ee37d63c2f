"""Stop strings on streamed text, wherever the pieces are cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from worker.marks import MarkFinder


class StopMatcher:
    """Finds the first stop string that becomes complete, and holds back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._finder = MarkFinder(stops)
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What may be shown now. After a match, nothing any more."""
        if self.matched is not None:
            return ""
        visible, self.matched, _after = self._finder.feed(text)
        return visible

    def passes(self, text: str) -> bool:
        """Whether `feed` would show the text as it is, and remember nothing of it."""
        return self.matched is None and self._finder.passes(text)

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        return self._finder.flush()
