"""What an answer has to be: a text of some form, calls of tools, or either. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from worker.engine.output import PromptError
from worker.parsers.base import Syntax
from worker.parsers.constrained import constrained

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""Those of vLLM's `structured_outputs`."""
SETTINGS = frozenset({"structured_outputs", "tool_choice", "parallel_tool_calls"})


class Form(NamedTuple):
    """The form of a text. `kind` is one of `KINDS`, `field` its name in errors."""

    kind: str
    value: Any
    field: str = "structured_outputs"


class Function(NamedTuple):
    """One that may be called. `schema` is that of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """`form` of the text, where there may be one; `functions`, where there may be calls."""

    form: Form | None = None
    functions: tuple[Function, ...] = ()
    several: bool = False
    """Whether more than one call may come."""
    plain: bool = False
    """The answer goes on from a plain prompt: there are no marks in it."""

    def syntax(self, model: Syntax) -> Syntax:
        """That of the answer, where the model's own one is `model`."""
        return constrained(Syntax() if self.plain else model, calls=bool(self.functions))

    @property
    def field(self) -> str:
        """What of the request asks for it, by its name in errors."""
        return "tools" if self.form is None else self.form.field


def shape_of(given: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None) -> Shape | None:
    """What the settings ask for, with `tools` in OpenAI's form (None with a plain prompt). None: any answer
    will do.

    Raises `PromptError`.
    """
    choice = given.get("tool_choice")
    functions = tuple(_function(tool["function"]) for tool in tools or ())
    several = bool(given.get("parallel_tool_calls", True))
    form = _form(given.get("structured_outputs"))
    if isinstance(choice, Mapping):
        wanted = choice.get("function", {}).get("name")
        named = tuple(function for function in functions if function.name == wanted)[:1]
        if not named:
            raise _wrong("tool_choice", f"tool_choice names {wanted!r}, which is none of the tools")
        return Shape(functions=named)
    if choice == "required":
        if not functions:
            raise _wrong("tool_choice", "tool_choice needs tools")
        return Shape(functions=functions, several=several)
    if form is None:
        return None
    return Shape(form, functions, several, plain=tools is None)


def _form(given: Mapping[str, Any] | None) -> Form | None:
    """Of `structured_outputs`, which may also say in `field` where it comes from."""
    if given is None:
        return None
    field = given.get("field", "structured_outputs")
    kinds = [kind for kind in KINDS if given.get(kind)]
    if len(kinds) != 1:
        raise _wrong(field, f"{field} must have exactly one of {', '.join(KINDS)}")
    kind, value = kinds[0], given[kinds[0]]
    if kind == "json" and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise _wrong(field, f"{field} is no JSON: {error}") from error
    if kind == "json" and not isinstance(value, dict):
        raise _wrong(field, f"{field} must be a JSON schema that is an object")
    return Form(kind, value, field)


def _function(function: Mapping[str, Any]) -> Function:
    """Arguments are always an object, and have no names that are not declared, unless that is allowed."""
    schema = dict(function.get("parameters") or {"properties": {}})
    if schema.get("type", "object") != "object":
        schema = {}
    schema["type"] = "object"
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return Function(function["name"], schema)


def _wrong(field: str, message: str) -> PromptError:
    return PromptError(message, "settings", param=field)
