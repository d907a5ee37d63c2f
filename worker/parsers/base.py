"""How a model marks reasoning and tool calls in its text, and what an answer consists of. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

TEXT, REASONING, TOOL = "normal", "reasoning", "tool"
"""States of an answer, by mlx-lm's names. Text in any other state (a header) is dropped."""
HEAD, BODY = "head", "body"
"""Two more: before any text, where marks count, and in a text that has begun, where none do."""

Edges = tuple[tuple[str, str], ...]
"""The marks that end a state, each with the state that follows."""


class Call(NamedTuple):
    """A tool call. `arguments` is a JSON object as text."""

    name: str
    arguments: str


Tools = Sequence[dict[str, Any]] | None
"""In OpenAI's form."""
ReadCalls = Callable[[str, Tools], list[Call]]
"""The calls in the text between two marks. Raises `ValueError` for what is not one good call at least."""


class Channel(Enum):
    """Who a part of an answer is for. The values tell the order inside one delta."""

    REASONING = 1
    TEXT = 2
    CALL = 3


class Part(NamedTuple):
    """A piece of reasoning or text, or a call: its name, arguments and number."""

    channel: Channel
    text: str
    name: str = ""
    number: int = 0
    whole: bool = True
    """False where the end of the answer cut the arguments off."""


@dataclass(frozen=True)
class Syntax:
    """The marks of one model. The empty one finds nothing: everything is text."""

    edges: Mapping[str, Edges] = field(default_factory=dict)
    """By state."""
    read_calls: ReadCalls | None = None
    first: str = TEXT
    calls_only: bool = False
    """Nothing else comes, but for reasoning: what begins like a mark is one."""
    opens_reasoning: str | None = None
    """The mark after which a prompt leaves the answer to begin with reasoning."""

    @property
    def has_tools(self) -> bool:
        return self.read_calls is not None

    @property
    def has_reasoning(self) -> bool:
        return any(state == REASONING for edges in self.edges.values() for _mark, state in edges)

    def marks(self, state: str) -> tuple[str, str] | None:
        """What begins and ends that state in a text; the second is empty where nothing does."""
        before = self.edges.get(TEXT, ()) + self.edges.get(HEAD, ())
        start = next((mark for mark, to in before if to == state), None)
        end = next((mark for mark, to in self.edges.get(state, ()) if to != TOOL), "")
        return None if start is None else (start, end)

    def without_tools(self) -> Syntax:
        """The same model, asked by somebody who offers no tools: marks of calls are text."""
        edges = {
            state: tuple(edge for edge in edges if edge[1] != TOOL)
            for state, edges in self.edges.items()
            if state != TOOL
        }
        return replace(self, edges=edges, read_calls=None)


def marked(
    reasoning: tuple[str, str] | None, tools: tuple[str, str] | None, read: ReadCalls | None
) -> Syntax:
    """The usual form: two marks around reasoning, two around calls (the second may be empty).

    A call may come inside reasoning, for models forget to end that first.
    """
    to_text = [] if reasoning is None else [(reasoning[0], REASONING)]
    call = [] if tools is None else [(tools[0], TOOL)]
    edges: dict[str, Edges] = {TEXT: (*to_text, *call)}
    if reasoning is not None:
        edges[REASONING] = ((reasoning[1], TEXT), *call)
    if tools is not None:
        edges[TOOL] = ((tools[1], TEXT),) if tools[1] else ()
    return Syntax(edges, read, opens_reasoning=None if reasoning is None else reasoning[0])
