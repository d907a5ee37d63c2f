"""Anthropic's messages, the request: bytes to a checked `Asked`, for an answer or for its count.

What belongs to the vendor's own service (caching marks, server tools, betas) is left out in silence:
agents send new such fields each month.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects.anthropic_content import parse_conversation
from gateway.dialects.anthropic_rows import BUDGET
from gateway.dialects.base import Asked
from gateway.dialects.fields import Body, Fields, missing, wrong_type, wrong_value
from gateway.dialects.formats import Format, typed
from gateway.dialects.openai_sampling import sampling
from protocol.errors import InvalidRequestError
from protocol.values import ChatMessage, SamplingParams, ToolSpec

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def parse(body: bytes, *, drop_billing_line: bool = True) -> Asked:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    if fields.raw("max_tokens") is None:
        raise InvalidRequestError(
            "max_tokens: Field required", param="max_tokens", reason="missing_required_parameter"
        )
    asked = parse_countable(fields, drop_billing_line=drop_billing_line)
    return msgspec.structs.replace(
        asked,
        sampling=sampling(fields, stop="stop_sequences"),
        stream=fields.flag("stream"),
        response_format=_format(fields),
    )


def parse_countable(fields: Fields, *, drop_billing_line: bool = True) -> Asked:
    """All that decides how many tokens the prompt has."""
    tools = _tools(fields)
    choice = fields.object("tool_choice")
    messages = parse_conversation(fields, drop_billing_line=drop_billing_line)
    begun = _begun(messages)
    return Asked(
        model=fields.text("model"),
        sampling=SamplingParams(),
        messages=messages if begun is None else (*messages[:-1], begun),
        tools=tools,
        tool_choice=_tool_choice(choice, tools),
        parallel_tool_calls=choice is None or not choice.flag("disable_parallel_tool_use"),
        template_options=_thinking(fields) | ({} if begun is None else {"continue_final_message": True}),
    )


def _tools(fields: Fields) -> tuple[ToolSpec, ...]:
    """The client's own tools; those that the vendor's servers run do not exist here."""
    found = []
    for index, value in enumerate(fields.items("tools") or []):
        path = f"tools[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        tool = Fields(value, path)
        if tool.text("type") not in (None, "custom"):
            continue
        name = tool.text("name")
        if not name:
            raise missing(tool.path("name"))
        schema = tool.object("input_schema")
        found.append(
            ToolSpec(
                name=name,
                description=tool.text("description") or "",
                parameters={} if schema is None else value["input_schema"],
            )
        )
    return tuple(found)


def _tool_choice(choice: Fields | None, tools: tuple[ToolSpec, ...]) -> str:
    if choice is None:
        return "auto"
    kind = choice.text("type")
    if kind == "tool":
        name = choice.text("name")
        if name not in [tool.name for tool in tools]:
            raise wrong_value(choice.path("name"), f"is {name!r:.80}, which is not among the tools")
        return f"named:{name}"
    if kind not in _CHOICES:
        raise wrong_value(choice.path("type"), "must be auto, any, tool or none")
    if kind == "any" and not tools:
        raise wrong_value("tool_choice", "needs tools")
    return _CHOICES[kind]


def _thinking(fields: Fields) -> dict[str, Any]:
    """Kinds of thinking that come later count as thinking."""
    thinking = fields.object("thinking") or Fields({}, "thinking")
    kind, budget = thinking.text("type"), BUDGET.integer(thinking)
    return ({} if kind is None else {"enable_thinking": kind != "disabled"}) | (
        {} if budget is None else {"thinking_budget": budget}
    )


def _begun(messages: tuple[ChatMessage, ...]) -> ChatMessage | None:
    """An assistant's turn at the end, which the model has to go on with. White space at its end would keep
    the model from words that bring their own."""
    last = messages[-1]
    text = str(last.content).rstrip()
    if last.role != "assistant" or not text or last.tool_calls:
        return None
    return msgspec.structs.replace(last, content=text)


def _format(fields: Fields) -> Format | None:
    """The vendor's two places for it, the later one first."""
    config = fields.object("output_config")
    given = None if config is None else config.object("format")
    if given is not None:
        return typed(given, "output_config.format", flat=True)
    given = fields.object("output_format")
    return None if given is None else typed(given, "output_format", flat=True)
