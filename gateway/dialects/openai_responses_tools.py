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


def parse_tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> str:
    """Raises `ClusterError`. A choice of what is not here counts as `auto`."""
    choice = fields.raw("tool_choice")
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise wrong_value("tool_choice", "must be auto, none, required or an object")
        if choice == "required" and not tools:
            raise wrong_value("tool_choice", "needs tools")
        return choice
    named = fields.object("tool_choice")
    if named is None or named.text("type") not in ("function", "custom"):
        return "auto"
    name = joined_name(named.text("namespace"), named.text("name") or "")
    if name not in [tool.spec.name for tool in tools]:
        raise wrong_value("tool_choice.name", f"is {name!r:.80}, which is not among the tools")
    return f"named:{name}"
