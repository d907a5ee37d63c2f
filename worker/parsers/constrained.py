"""The syntax of an answer that a grammar shapes: what the grammar writes, and nothing else. Pure.

A model's own marks would be found inside of a JSON string too, where they are text. So reasoning and
calls may come before the text only, and once the text has begun there are no marks any more.
"""

from __future__ import annotations

from worker.parsers.base import HEAD, REASONING, TEXT, TOOL, Edges, Syntax
from worker.parsers.json_calls import TOOL_CALL, read_json_calls


def constrained(syntax: Syntax, *, calls: bool, text: bool = True) -> Syntax:
    """That of a model whose own one is `syntax`, where there may be calls, and text.

    Calls are JSON between the model's own marks where it writes them so itself, else between the usual
    ones. Models that write several messages in one answer write one, without its header.
    """
    head: Edges = ()
    edges: dict[str, Edges] = {}
    reasoning = syntax.marks(REASONING) if syntax.first == TEXT else None
    if reasoning is not None and reasoning[1]:
        head += ((reasoning[0], REASONING),)
        edges[REASONING] = ((reasoning[1], HEAD),)
    if calls:
        start, end = call_marks(syntax)
        head += ((start, TOOL),)
        edges[TOOL] = ((end, HEAD),)
    return Syntax({HEAD: head, **edges}, read_json_calls if calls else None, HEAD, calls_only=not text)


def call_marks(syntax: Syntax) -> tuple[str, str]:
    """What stands around a call that is JSON."""
    own = syntax.marks(TOOL)
    return own if own is not None and own[1] and syntax.read_calls is read_json_calls else TOOL_CALL
