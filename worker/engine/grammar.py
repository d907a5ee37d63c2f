"""The grammar of an answer that has a shape, in the form that llguidance reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from worker.engine.output import PromptError
from worker.engine.shape import Form, Function, Shape
from worker.parsers.base import REASONING, TOOL, Syntax

_SPACE = r" |\n {0,24}"
"""Between the parts of JSON, once. Where any number may come, small models write nothing else any more."""
_ASCII = "d"
r"""Of the classes of characters, `\d` means the ten digits that everybody thinks of."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

MOST_PARTS = 5000
"""Objects and lists in the schemas of one answer; llguidance calls itself for each that is within another."""
_MOST_RULES = 1000
_LONGEST_GRAMMAR = 64 * 1024
"""Characters. Both hold llguidance to a few seconds, and to the stack that it gets."""

TokenOf = Callable[[str], int | None]
"""The id of a mark that is one special token; None where it is text."""


def grammar_of(shape: Shape, syntax: Syntax, token_of: TokenOf, *, in_reasoning: bool = False) -> str:
    """`syntax` is that of the answer (`constrained`). Raises `PromptError` for a form that is none."""
    parts: list[dict[str, Any]] = []
    ways: list[str] = []
    rules: list[str] = []

    def written(mark: str) -> str:
        token = token_of(mark)
        return _literal(mark) if token is None else f"<[{token}]>"

    if shape.form is not None:
        parts.append({"name": "text", **_text(shape.form)})
        ways.append("@text")
    calls = syntax.marks(TOOL)
    if shape.functions and calls is not None:
        parts.append({"name": "call", **_json(_calls(shape.functions), lenient=True)})
        ways.append('call ("\\n" call)*' if shape.several else "call")
        rules.append(f'call: {written(calls[0])} "\\n" @call "\\n" {written(calls[1])}')
    thought = syntax.marks(REASONING)
    if thought is not None:
        rules += [*_until(thought[1], token_of(thought[1])), r"GAP: /[ \n]{1,4}/"]
    start = f"({' | '.join(ways)})"
    if thought is not None and in_reasoning:
        start = f"thought {start}"
    elif thought is not None:
        start = f"({written(thought[0])} thought)? {start}"
    elif ways == ["@text"]:
        return json.dumps({"grammars": parts})
    lark = "\n".join([f"start: {start}", *rules])
    return json.dumps({"grammars": [{"lark_grammar": lark}, *parts]})


def _until(mark: str, token: int | None) -> list[str]:
    """Any text up to the mark that ends reasoning, and the white space behind it."""
    if token is not None:
        return [f"thought: /(?s:.*)/ <[{token}]> GAP?"]
    return ["thought: inner GAP?", f"inner[suffix={_literal(mark)}]: /(?s:.*)/"]


def _text(form: Form) -> dict[str, Any]:
    if form.kind == "json":
        if part_count(form.value) > MOST_PARTS:
            raise _too_large(form, f"{MOST_PARTS} objects and lists")
        return _json(form.value)
    if form.kind == "json_object":
        return _json(ANY_OBJECT)
    if form.kind == "regex":
        return {"lark_grammar": f"start: /{regex_to_lark(_whole(form.value), _ASCII)}/"}
    if form.kind == "choice":
        return {"lark_grammar": f"start: {' | '.join(map(_literal, form.value))}"}
    if len(form.value) > _LONGEST_GRAMMAR:
        raise _too_large(form, f"{_LONGEST_GRAMMAR} characters")
    try:
        lark = any_to_lark(form.value)
    except Exception as error:  # whatever a text that is no grammar leads it to
        raise PromptError(f"{form.field} is no grammar: {error}", "settings", param=form.field) from error
    if lark.count("\n") > _MOST_RULES:
        raise _too_large(form, f"{_MOST_RULES} lines")
    return {"lark_grammar": lark}


def part_count(schema: Any) -> int:
    """How many objects and lists it is made of."""
    count, left = 0, [schema]
    while left:
        each = left.pop()
        if isinstance(each, Mapping | list):
            count += 1
            left.extend(each.values() if isinstance(each, Mapping) else each)
    return count


def _too_large(form: Form, limit: str) -> PromptError:
    return PromptError(f"{form.field} has more than {limit}; make it smaller", "settings", param=form.field)


def _whole(pattern: str) -> str:
    """The pattern has to match the whole text: its anchors say nothing more."""
    body = pattern.removesuffix("$")
    escaped = (len(body) - len(body.rstrip("\\"))) % 2
    return (pattern if escaped else body).removeprefix("^")


def _json(schema: Mapping[str, Any], *, lenient: bool = False) -> dict[str, Any]:
    """`lenient`: keywords that are not understood are passed over."""
    options = {"whitespace_pattern": _SPACE, "lenient": lenient}
    return {"json_schema": {**schema, "x-guidance": options}}


def _calls(functions: tuple[Function, ...]) -> dict[str, Any]:
    """The schema of a call of one of them."""
    if len(functions) == 1:
        return _call(functions[0], "#/properties/arguments")
    return {"anyOf": [_call(each, f"#/anyOf/{i}/properties/arguments") for i, each in enumerate(functions)]}


def _call(function: Function, place: str) -> dict[str, Any]:
    """`place`: where in the whole the schema of the arguments comes to stand."""
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, "arguments": _moved(dict(function.schema), place)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(value: Any, place: str) -> Any:
    """A part of a schema whose references begin at a root that is now at `place`."""
    if isinstance(value, list):
        return [_moved(each, place) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: place + part[1:]
        if name == "$ref" and isinstance(part, str) and part[:1] == "#"
        else _moved(part, place)
        for name, part in value.items()
    }


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
