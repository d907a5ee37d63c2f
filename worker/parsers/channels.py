"""An answer's text told apart: reasoning, text and tool calls, wherever its pieces are cut. Pure.

Each character belongs to one channel or to the syntax (marks, and the white space around them).
A call is told when it is complete and good; what is none is given back where it was found. A call that
has to come, and was cut off, is told as far as it goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from worker.marks import MarkFinder
from worker.parsers.base import BODY, HEAD, REASONING, TEXT, TOOL, Channel, Part, Syntax, Tools
from worker.parsers.json_calls import begun_call

_MOST_ENDS = 16
"""So many end marks may stand in strings of one call: at each of them all of it is read again."""
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_CHANNELS = {
    TEXT: Channel.TEXT,
    HEAD: Channel.TEXT,
    BODY: Channel.TEXT,
    REASONING: Channel.REASONING,
}


class Channels:
    """Owns the state of one answer. What was told depends on the whole text so far only."""

    def __init__(self, syntax: Syntax, tools: Tools = None, *, in_reasoning: bool = False) -> None:
        self._syntax = syntax
        self._tools = tools
        self._skip = in_reasoning and syntax.has_reasoning
        """White space that comes next belongs to the mark before it."""
        self._state = self._before = REASONING if self._skip else syntax.first
        self._finder = self._finder_of(self._state)
        self._spaces = ""
        """At the end of reasoning so far: it belongs to the mark, if that comes now."""
        self._raw: list[str] = []
        """Of a call: its mark, and its text so far."""

    @property
    def in_reasoning(self) -> bool:
        return self._state == REASONING

    def passing(self, text: str) -> Channel | None:
        """Whose the whole text is, where `feed` would only say so and remember nothing of it."""
        if self._skip or self._state == HEAD or not self._finder.passes(text):
            return None
        if self._state == REASONING and (self._spaces or text[-1:].isspace()):
            return None
        return _CHANNELS.get(self._state)

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            before, mark, text = self._finder.feed(text)
            if self._state == HEAD and before.strip():
                before, mark, text = f"{before}{mark or self._finder.flush()}{text}", None, ""
                self._enter(BODY)
            if before:
                parts += self._add(before)
            if mark is not None:
                parts += self._turn(mark)
        return parts

    def flush(self) -> list[Part]:
        """The end of the answer: what was held back, and what of a call is there."""
        held = self._finder.flush()
        parts = [] if self._state == HEAD and self._syntax.calls_only else list(self._add(held))
        while self._state == TOOL:
            calls = self._calls("".join(self._raw[1:]))
            if calls:
                return [*parts, *calls]
            if self._before == HEAD:
                return [*parts, *self._begun()]
            parts += [*self._not_closed(), *self._add(self._finder.flush())]
        if self._spaces:
            parts.append(Part(Channel.REASONING, self._spaces))
            self._spaces = ""
        return parts

    def _begun(self) -> Iterator[Part]:
        """A call that the end of the answer cut off, where a grammar wrote it: nobody wrote its marks as
        text."""
        found = begun_call("".join(self._raw[1:]))
        if found is not None:
            call, whole = found
            yield Part(Channel.CALL, call.arguments, call.name, whole=whole)

    def _add(self, text: str) -> Iterator[Part]:
        if self._state == TOOL:
            self._raw.append(text)
            return
        if self._skip:
            text = text.lstrip()
        channel = _CHANNELS.get(self._state)
        if not text or channel is None:
            return
        self._skip = False
        if channel is Channel.REASONING:
            text = self._spaces + text
            self._spaces = text[len(text.rstrip()) :]
            text = text[: len(text) - len(self._spaces)]
        if text:
            yield Part(channel, text)

    def _turn(self, mark: str) -> list[Part]:
        """From a state to the next one, which the mark begins."""
        state = self._state
        if state == TOOL:
            return self._close(mark)
        self._enter(dict(self._syntax.edges[state])[mark])
        if self._state == TOOL:
            self._before = state
            self._raw = [mark]
            return []
        # A mark that leads where it stands (the end of a message) is only taken out.
        if self._state != state:
            self._skip = REASONING in (state, self._state)
            self._spaces = ""
        return []

    def _close(self, mark: str) -> list[Part]:
        """The mark that ends a call, unless a string of its JSON holds it."""
        body = "".join(self._raw[1:])
        calls = self._calls(body)
        if calls:
            self._spaces = ""
            self._enter(dict(self._syntax.edges[TOOL])[mark])
            return calls
        self._raw.append(mark)
        if not _in_string(body):
            return self._give_back("".join(self._raw))
        return [] if self._raw.count(mark) < _MOST_ENDS else self._not_closed()

    def _not_closed(self) -> list[Part]:
        """What is there of a call is none. Behind a mark that was taken for a string's own, there may
        be others."""
        raw = "".join(self._raw)
        ends = [raw.find(mark) + len(mark) for mark, _state in self._syntax.edges[TOOL] if mark in raw]
        end = min(ends, default=len(raw))
        return [*self._give_back(raw[:end]), *self.feed(raw[end:])]

    def _give_back(self, raw: str) -> list[Part]:
        self._enter(self._before)
        self._raw = []
        return list(self._add(raw))

    def _calls(self, body: str) -> list[Part]:
        if self._syntax.read_calls is None:
            return []
        try:
            calls = self._syntax.read_calls(body, self._tools)
        except ValueError:
            return []
        return [Part(Channel.CALL, call.arguments, call.name) for call in calls]

    def _enter(self, state: str) -> None:
        self._state = state
        self._finder = self._finder_of(state)

    def _finder_of(self, state: str) -> MarkFinder:
        return MarkFinder([mark for mark, _state in self._syntax.edges.get(state, ())])


def _in_string(text: str) -> bool:
    """Whether JSON would be inside a string at the end of the text."""
    return bool(_QUOTE.findall(text).count('"') % 2)
