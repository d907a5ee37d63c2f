"""What a client sees of an answer's text: up to a stop string, without the white space around calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from worker.stops import StopMatcher


class VisibleText:
    """Owns what is held back. White space at the end is, where a call may follow; stop strings are
    looked for in it at once all the same."""

    def __init__(self, stops: Sequence[str], *, calls: bool) -> None:
        self._matcher = StopMatcher(stops)
        self._calls = calls
        self._spaces = ""
        self._after_call = False

    @property
    def matched(self) -> str | None:
        return self._matcher.matched

    def passes(self, text: str) -> bool:
        """Whether `feed` would show the text as it is, and remember nothing of it."""
        held = self._spaces or self._after_call or text[-1:].isspace()
        return not (self._calls and held) and self._matcher.passes(text)

    def feed(self, text: str) -> str:
        """What may be shown now."""
        return self._shown(self._matcher.feed(text))

    def call(self) -> str:
        """A call comes here: what is to be shown before it."""
        shown = self._shown(self._matcher.flush())
        self._spaces = ""
        self._after_call = True
        return shown

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        shown = self._shown("" if self.matched is not None else self._matcher.flush())
        return shown if self._after_call else shown + self._spaces

    def _shown(self, text: str) -> str:
        if not self._calls:
            return text
        text = self._spaces + text
        if self.matched is not None:
            self._spaces = ""
            return "" if self._after_call and not text.strip() else text
        self._spaces = text[len(text.rstrip()) :]
        text = text[: len(text) - len(self._spaces)]
        if text:
            self._after_call = False
        return text
