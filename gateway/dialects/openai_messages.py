"""The conversation of an OpenAI chat request: JSON messages to `ChatMessage`."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects.fields import Fields, missing, wrong_type, wrong_value
from gateway.dialects.pictures import joined, picture_part, text_only
from protocol.values import ChatMessage, ContentPart, ToolCall

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_PICTURES = ("image_url", "input_image")
_SEEING = ("user", "tool")
"""Roles whose turns have pictures."""


def parse_messages(fields: Fields) -> tuple[ChatMessage, ...]:
    """The messages of a request. Raises `ClusterError` with the path of the fault."""
    messages = fields.items("messages")
    if messages is None:
        raise missing("messages")
    if not messages:
        raise wrong_value("messages", "must have at least one message")
    return tuple(_message(value, f"messages[{index}]") for index, value in enumerate(messages))


def _message(value: Any, path: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    role = fields.text("role")
    if role is None:
        raise missing(fields.path("role"))
    if role not in _ROLES:
        raise wrong_value(fields.path("role"), f"must be one of {', '.join(_ROLES)}")
    return ChatMessage(
        role=_ROLES[role],
        content=_content(fields, sees=role in _SEEING),
        name=fields.text("name") or "",
        reasoning=fields.text("reasoning_content") or fields.text("reasoning") or _details(fields),
        tool_calls=_tool_calls(fields) or _function_call(fields),
        tool_call_id=fields.text("tool_call_id") or (fields.text("name") or "" if role == "function" else ""),
    )


def _details(fields: Fields) -> str:
    """OpenRouter's form of what the model thought; parts that cannot be read are left out."""
    found = fields.items("reasoning_details") or []
    texts = [part.get("text") or part.get("summary") for part in found if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _content(fields: Fields, *, sees: bool) -> str | tuple[ContentPart, ...]:
    value = fields.raw("content")
    path = fields.path("content")
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    return joined([_part(part, f"{path}[{index}]", sees=sees) for index, part in enumerate(value)])


def _part(value: Any, path: str, *, sees: bool) -> str | ContentPart:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    kind = fields.text("type") or next((name for name in ("text", "image_url") if name in value), None)
    if kind is None:
        raise missing(fields.path("type"))
    if kind in _PICTURES and sees:
        refusal = text_only(fields.path("type"), kind)
        return picture_part(fields.path("image_url"), value.get("image_url"), must_be_seen=refusal)
    if kind not in _TEXT_PARTS:
        raise text_only(fields.path("type"), kind)
    text = fields.text(_TEXT_PARTS[kind])
    if text is None:
        raise missing(fields.path(_TEXT_PARTS[kind]))
    return text


def _tool_calls(fields: Fields) -> tuple[ToolCall, ...]:
    calls = fields.items("tool_calls") or []
    path = fields.path("tool_calls")
    found = [_tool_call(value, f"{path}[{index}]") for index, value in enumerate(calls)]
    return tuple(call for call in found if call is not None)


def _tool_call(value: Any, path: str) -> ToolCall | None:
    """None for a call of a tool that is no function."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    if (fields.text("type") or "function") != "function":
        return None
    function = fields.object("function")
    if function is None:
        raise missing(fields.path("function"))
    return _called(function, fields.text("id") or "")


def _function_call(fields: Fields) -> tuple[ToolCall, ...]:
    """A call in the older form, which has no id: the name stands for it, there and in the result."""
    function = fields.object("function_call")
    return () if function is None else (_called(function, function.text("name") or ""),)


def _called(function: Fields, call_id: str) -> ToolCall:
    """Whatever stands for the arguments is taken: it was the answer of a model, perhaps ours."""
    name = function.text("name")
    if name is None:
        raise missing(function.path("name"))
    arguments = function.raw("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
    return ToolCall(id=call_id, name=name, arguments=arguments)
