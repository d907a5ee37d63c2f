"""A model's syntax: found by mlx-lm from its template and vocabulary, or named in the configuration."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from worker.parsers.base import REASONING, TEXT, TOOL, Call, Edges, ReadCalls, Syntax, Tools, marked
from worker.parsers.json_calls import TOOL_CALL, as_calls, read_json_calls

NONE = "none"
THINK = ("<think>", "</think>")
HERMES = ("hermes", "json_tools")
"""Names of the form `<tool_call>{"name": …, "arguments": …}</tool_call>`, which needs no mlx-lm."""
_PARSERS = "mlx_lm.tool_parsers"
_BEGINNINGS = {
    "gemma4": "call:",
    "glm47": "<arg_key>",
    "kimi_k3": "<|open|>call",
    "laguna": "<arg_key>",
    "longcat": "<longcat_arg_key>",
    "muse_spark": "<atem:invoke",
}
"""From each of these, such parsers look for an end in all that follows."""
_MOST_LOOKED_AT = 2_000_000
"""Characters, each counted once for every beginning: less than a second's work."""


def configured(found: Syntax, tool_parser: str | None, reasoning_parser: str | None) -> Syntax:
    """What was found, but for what the configuration names. Raises `ValueError` for unknown names."""
    if tool_parser is None and reasoning_parser is None:
        return found
    reasoning = found.marks(REASONING) if reasoning_parser is None else _named_reasoning(reasoning_parser)
    if tool_parser is None:
        return marked(reasoning, found.marks(TOOL), found.read_calls)
    return marked(reasoning, *_named_tools(tool_parser))


def of_tokenizer(tokenizer: Any) -> Syntax:
    """What mlx-lm's tokenizer knows of its model's syntax."""
    template = getattr(tokenizer, "chat_template", None)
    reasoning = (tokenizer.think_start, tokenizer.think_end) if tokenizer.has_thinking else None
    if reasoning is None and isinstance(template, str) and all(mark in template for mark in THINK):
        reasoning = THINK
    tools, read = None, None
    if tokenizer.has_tool_calling:
        tools = (tokenizer.tool_call_start, tokenizer.tool_call_end)
        # A parser that reads JSON alone is replaced by ours, which is more lenient.
        parse = tokenizer.tool_parser
        read = read_json_calls if parse.__module__ == f"{_PARSERS}.json_tools" else _Reader(parse)
    return _with_messages(marked(reasoning, tools, read), tokenizer)


def special_marks(syntax: Syntax, specials: list[str]) -> frozenset[str]:
    """Those of a tokenizer's special tokens that the syntax is made of: the answer's text has to show
    them, or nothing would be found."""
    texts = [mark for edges in syntax.edges.values() for mark, _state in edges]
    parse = getattr(syntax.read_calls, "parse", None)
    if parse is not None:
        # Marks inside of calls stand in the parser's patterns only.
        texts.append(inspect.getsource(inspect.getmodule(parse) or parse).replace("\\", ""))
    return frozenset(token for token in specials if len(token) > 2 and any(token in text for text in texts))


def _with_messages(syntax: Syntax, tokenizer: Any) -> Syntax:
    """Also the marks of models that write several messages, each with a header, in one answer."""
    transitions = tokenizer.response_transitions
    if not transitions and not tokenizer.structural_markers:
        return syntax
    edges: dict[str, Edges] = dict(syntax.edges)
    if any(state == TOOL for targets in transitions.values() for _mark, state in targets):
        edges[TEXT] = tuple(edge for edge in edges[TEXT] if edge[1] != TOOL)
    edges[TEXT] += tuple((mark, TEXT) for mark in tokenizer.structural_markers)
    for state, targets in transitions.items():
        edges[state] = edges.get(state, ()) + tuple((mark, target) for mark, target in targets)
    return replace(syntax, edges=edges, first=tokenizer.response_initial_state or TEXT)


class _Reader:
    """A parser of mlx-lm's as `ReadCalls`."""

    def __init__(self, parse: Callable[[str, Any], Any]) -> None:
        self.parse = parse
        self._beginning = _BEGINNINGS.get(parse.__module__.rpartition(".")[2])

    def __call__(self, text: str, tools: Tools) -> list[Call]:
        if self._beginning is not None and text.count(self._beginning) * len(text) > _MOST_LOOKED_AT:
            raise ValueError("no tool call: a model in a loop")  # a worker would be busy for minutes
        try:
            found = self.parse(text, tools)
        except Exception as error:  # whatever its patterns make of a text that they do not fit
            raise ValueError(f"no tool call: {error}") from error
        return as_calls(found)


def _named_reasoning(name: str) -> tuple[str, str] | None:
    if name == NONE:
        return None
    if name == "think":
        return THINK
    start, _, end = name.partition(" ")
    if not start or not end or " " in end:
        raise ValueError(
            f"reasoning_parser is {name!r}; write 'none', 'think', or the two marks with a space between them"
        )
    return start, end


def _named_tools(name: str) -> tuple[tuple[str, str] | None, ReadCalls | None]:
    if name == NONE:
        return None, None
    if name in HERMES:
        return TOOL_CALL, read_json_calls
    try:
        known = [found.name for found in pkgutil.iter_modules(importlib.import_module(_PARSERS).__path__)]
    except ImportError:
        known = []
    if name not in known:
        names = ", ".join(sorted({NONE, *HERMES, *known}))
        raise ValueError(f"tool_parser is {name!r}; known are {names}")
    module = importlib.import_module(f"{_PARSERS}.{name}")
    return (module.tool_call_start, module.tool_call_end), _Reader(module.parse_tool_call)
