"""Stop strings on streamed text, wherever the pieces are cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string that becomes complete, and holds back what may begin one.

    The visible text depends on the whole text only, not on how it was cut into pieces. Of stop
    strings that become complete with the same character, the longest counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What may be shown now. After a match, nothing any more."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = self._first_complete(text)
        if found is not None:
            end, self.matched = found
            self._held = ""
            return text[: end - len(self.matched)]
        visible = len(text) - self._possible_beginning(text)
        self._held = text[visible:]
        return text[:visible]

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, str] | None:
        found = [(text.find(stop) + len(stop), stop) for stop in self._stops if stop in text]
        return min(found, key=lambda match: (match[0], -len(match[1])), default=None)

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest tail that is a proper beginning of a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
