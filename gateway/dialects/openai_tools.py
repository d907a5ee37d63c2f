"""What an OpenAI chat request says of tools: `tools`, `tool_choice`, `parallel_tool_calls`."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.dialects.fields import Fields, missing, wrong_type, wrong_value
from protocol.values import ToolSpec

_MOST_TOOLS = 128
_LONGEST_NAME = 256


class ToolUse(NamedTuple):
    """The tools that the model may call."""

    tools: tuple[ToolSpec, ...]
    choice: str
    """As `Generate.tool_choice` has it."""
    parallel: bool
    """False: one call an answer."""


def parse_tools(fields: Fields) -> ToolUse:
    """Raises `ClusterError` with the path of the fault."""
    tools = _specs(fields)
    parallel = fields.raw("parallel_tool_calls") is None or fields.flag("parallel_tool_calls")
    wanted = fields.raw("tool_choice")
    if wanted is None or isinstance(wanted, str):
        return ToolUse(tools, _mode(wanted or "auto", tools), parallel)
    if not isinstance(wanted, dict):
        raise wrong_type("tool_choice", "a string or an object", wanted)
    return ToolUse(*_chosen(Fields(wanted, "tool_choice"), tools), parallel)


def _specs(fields: Fields) -> tuple[ToolSpec, ...]:
    values = fields.items("tools") or []
    if len(values) > _MOST_TOOLS:
        raise wrong_value("tools", f"must have at most {_MOST_TOOLS} items")
    specs = [_spec(value, f"tools[{index}]") for index, value in enumerate(values)]
    return tuple(spec for spec in specs if spec is not None)


def _spec(value: Any, path: str) -> ToolSpec | None:
    """None for a kind of tool that is no function: there is nobody here to run it."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    tool = Fields(value, path)
    if (tool.text("type") or "function") != "function":
        return None
    function = tool.object("function")
    if function is None:
        raise missing(tool.path("function"))
    parameters = function.object("parameters")
    return ToolSpec(
        name=_name(function),
        description=function.text("description") or "",
        parameters={} if parameters is None else function.raw("parameters"),
    )


def _name(function: Fields) -> str:
    name = function.text("name")
    if name is None:
        raise missing(function.path("name"))
    if not 0 < len(name) <= _LONGEST_NAME:
        raise wrong_value(function.path("name"), f"must have 1 to {_LONGEST_NAME} characters")
    return name


def _mode(wanted: str | None, tools: tuple[ToolSpec, ...]) -> str:
    if wanted not in ("none", "auto", "required"):
        raise wrong_value("tool_choice", "must be none, auto, required, or name a function")
    if wanted == "required" and not tools:
        raise wrong_value("tool_choice", "needs tools")
    return wanted


def _chosen(choice: Fields, tools: tuple[ToolSpec, ...]) -> tuple[tuple[ToolSpec, ...], str]:
    """The tools that are left by a `tool_choice` which is an object, and the choice among them."""
    if choice.text("type") != "allowed_tools":
        function = choice.object("function")
        if function is None:
            raise wrong_value("tool_choice", "must name a function, or the allowed tools")
        _check_names([_name(function)], tools)
        return tools, f"named:{_name(function)}"
    allowed = choice.object("allowed_tools")
    if allowed is None:
        raise missing(choice.path("allowed_tools"))
    names = [_named(value, allowed, index) for index, value in enumerate(allowed.items("tools") or [])]
    _check_names(names, tools)
    left = tuple(tool for tool in tools if tool.name in names)
    return left, _mode(allowed.text("mode"), left)


def _named(value: Any, allowed: Fields, index: int) -> str:
    path = f"{allowed.path('tools')}[{index}]"
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    function = Fields(value, path).object("function")
    if function is None:
        raise missing(f"{path}.function")
    return _name(function)


def _check_names(names: list[str], tools: tuple[ToolSpec, ...]) -> None:
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise wrong_value("tool_choice", f"names {name[:64]!r}, which is none of the tools")
