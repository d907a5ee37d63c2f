"""The tools of an OpenAI response: what the model is shown, and what its calls mean to the client."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from gateway.dialects.fields import Fields, missing, wrong_type, wrong_value
from gateway.dialects.openai_responses_input import joined_name
from protocol.values import ToolSpec

logger = logging.getLogger(__name__)

_FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. `spec` is what the model knows of it."""

    spec: ToolSpec
    name: str
    """As the client calls it, inside its group."""
    namespace: str = ""
    custom: bool = False
    """It takes free text, which the model gives as the one argument `input`."""


def parse_tools(fields: Fields) -> tuple[Tool, ...]:
    """The client's own tools; kinds that the vendor's servers run do not exist here.

    Raises `ClusterError` with the path of the fault.
    """
    return tuple(_tools(fields.items("tools") or [], "tools", ""))


def _tools(values: list[Any], path: str, namespace: str) -> list[Tool]:
    found: list[Tool] = []
    for index, value in enumerate(values):
        where = f"{path}[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(where, "an object", value)
        tool = Fields(value, where)
        kind = tool.text("type")
        if kind == "namespace":
            found += _tools(tool.items("tools") or [], tool.path("tools"), tool.text("name") or "")
        elif kind in ("function", "custom"):
            found.append(_tool(tool, namespace, custom=kind == "custom"))
        else:
            logger.debug("a tool of the kind %.40r is left out", kind)
    return found


def _tool(tool: Fields, namespace: str, *, custom: bool) -> Tool:
    name = tool.text("name")
    if not name:
        raise missing(tool.path("name"))
    parameters = None if custom else tool.object("parameters")
    schema: dict[str, Any] = _FREE_TEXT if custom else {}
    if parameters is not None:
        schema = tool.raw("parameters")
    spec = ToolSpec(
        name=joined_name(namespace, name), description=tool.text("description") or "", parameters=schema
    )
    return Tool(spec=spec, name=name, namespace=namespace, custom=custom)


def parse_tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], str]:
    """The tools that may be called, and whether one must be. Raises `ClusterError`.

    A choice of what is not here counts as `auto`.
    """
    choice = fields.raw("tool_choice")
    if choice is None:
        return tools, "auto"
    if isinstance(choice, str):
        return tools, _mode("tool_choice", choice, tools)
    named = fields.object("tool_choice") or Fields({}, "tool_choice")
    kind = named.text("type")
    if kind == "allowed_tools":
        return _allowed(named, tools)
    if kind not in ("function", "custom"):
        return tools, "auto"
    name = joined_name(named.text("namespace"), named.text("name") or "")
    if name not in [tool.spec.name for tool in tools]:
        raise wrong_value("tool_choice.name", f"is {name!r:.80}, which is not among the tools")
    return tools, f"named:{name}"


def _mode(path: str, wanted: str | None, tools: tuple[Tool, ...]) -> str:
    if wanted not in ("auto", "none", "required"):
        raise wrong_value(path, "must be auto, none, required or an object")
    if wanted == "required" and not tools:
        raise wrong_value(path, "needs tools")
    return wanted


def _allowed(choice: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], str]:
    """Those of the tools that the choice lists. What it lists beside them does not exist here."""
    names = set()
    for index, value in enumerate(choice.items("tools") or []):
        where = f"tool_choice.tools[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(where, "an object", value)
        listed = Fields(value, where)
        names.add(joined_name(listed.text("namespace"), listed.text("name") or ""))
    left = tuple(tool for tool in tools if tool.spec.name in names)
    return left, _mode("tool_choice.mode", choice.text("mode") or "auto", left)
