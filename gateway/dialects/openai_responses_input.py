"""The input of an OpenAI response: items of a conversation to `ChatMessage`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.dialects.fields import Fields, missing, wrong_type, wrong_value
from gateway.dialects.pictures import UNSEEN, joined, picture_part, text_only
from protocol.errors import ClusterError
from protocol.values import ChatMessage, ContentPart, ToolCall

logger = logging.getLogger(__name__)

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
_PICTURES = ("input_image", "image_url")

FindItem = Callable[[str, ClusterError], dict[str, Any] | None]
"""An item of an earlier answer, by its id, and what is told to those who may not have it."""


def joined_name(namespace: str | None, name: str) -> str:
    """The one name under which the model knows a tool of a group."""
    return f"{namespace}__{name}" if namespace else name


def parse_input(fields: Fields, kept: FindItem) -> tuple[ChatMessage, ...]:
    """The turns of `input`; `kept` finds items of earlier answers.

    Raises `ClusterError` with the path of the fault.
    """
    value = fields.raw("input")
    if value is None:
        return ()
    if isinstance(value, str):
        return (ChatMessage(role="user", content=value),)
    if not isinstance(value, list):
        raise wrong_type("input", "a string or an array of items", value)
    turns: list[ChatMessage] = []
    for index, item in enumerate(value):
        path = f"input[{index}]"
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        _add(turns, _turn(Fields(item, path), kept))
    return tuple(turns)


def _add(turns: list[ChatMessage], turn: ChatMessage | None) -> None:
    """What the model thought, said and called in a row is one turn of it."""
    if turn is None:
        return
    last = turns[-1] if turns else None
    if last is None or (last.role, turn.role) != ("assistant", "assistant"):
        turns.append(turn)
        return
    turns[-1] = ChatMessage(
        role="assistant",
        content="\n".join(str(part) for part in (last.content, turn.content) if part),
        reasoning="\n".join(part for part in (last.reasoning, turn.reasoning) if part),
        tool_calls=last.tool_calls + turn.tool_calls,
    )


def _turn(item: Fields, kept: FindItem) -> ChatMessage | None:
    """None for items that say nothing to the model, and for kinds unknown to us."""
    match _kind(item):
        case "message":
            return _message(item)
        case "function_call" | "custom_tool_call":
            return ChatMessage(role="assistant", tool_calls=(_call(item),))
        case "function_call_output" | "custom_tool_call_output":
            content = joined(_parts(item, "output", _in_result))
            return ChatMessage(role="tool", content=content, tool_call_id=item.text("call_id") or "")
        case "reasoning":
            thought = _text(item, "content") or _text(item, "summary")
            return ChatMessage(role="assistant", reasoning=thought) if thought else None
        case "item_reference":
            return _turn(_referred(item, kept), kept)
        case kind:
            logger.debug("an input item of the kind %.40r is left out", kind)
            return None


def _kind(item: Fields) -> str:
    kind = item.text("type")
    if kind is None and item.raw("role") is None:
        if item.raw("id") is None:
            raise missing(item.path("type"))
        return "item_reference"
    return kind or "message"


def _referred(item: Fields, kept: FindItem) -> Fields:
    item_id = item.text("id") or ""
    words = f"is {item_id[:80]!r}, which this server does not keep (any more); send the item itself"
    refusal = wrong_value(item.path("id"), words)
    found = kept(item_id, refusal)
    if found is None:
        raise refusal
    return Fields(found, item.path("id"))


def _message(item: Fields) -> ChatMessage:
    role = item.text("role")
    if role is None:
        raise missing(item.path("role"))
    if role not in _ROLES:
        raise wrong_value(item.path("role"), f"must be one of {', '.join(_ROLES)}")
    if role == "user":
        return ChatMessage(role="user", content=joined(_parts(item, "content", _of_user)))
    return ChatMessage(role=_ROLES[role], content=_text(item, "content"))


def _call(item: Fields) -> ToolCall:
    name = item.text("name")
    if name is None:
        raise missing(item.path("name"))
    if item.raw("type") == "custom_tool_call":
        arguments = msgspec.json.encode({"input": item.text("input") or ""}).decode()
    else:
        arguments = item.text("arguments") or "{}"
    call_id = item.text("call_id") or item.text("id") or ""
    return ToolCall(id=call_id, name=joined_name(item.text("namespace"), name), arguments=arguments)


Read = Callable[[Fields, str], str | ContentPart]
"""What a part of that kind says, which is none of text."""


def _text(item: Fields, name: str) -> str:
    """The text of a field that is a string or an array of parts, all of them of text."""
    return "\n".join(str(part) for part in _parts(item, name, _no_text))


def _parts(item: Fields, name: str, read: Read) -> list[str | ContentPart]:
    value = item.raw(name)
    if value is None or isinstance(value, str):
        return [value or ""]
    path = item.path(name)
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of parts", value)
    return [_part(part, f"{path}[{index}]", read) for index, part in enumerate(value)]


def _part(value: Any, path: str, read: Read) -> str | ContentPart:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    part = Fields(value, path)
    kind = part.text("type") or ""
    return part.text(_TEXTS[kind]) or "" if kind in _TEXTS else read(part, kind)


def _of_user(part: Fields, kind: str) -> str | ContentPart:
    refusal = text_only(part.path("type"), kind)
    if kind not in _PICTURES:
        raise refusal
    return picture_part(part.path("image_url"), part.raw("image_url"), must_be_seen=refusal)


def _in_result(part: Fields, kind: str) -> str | ContentPart:
    if kind not in _PICTURES:
        return UNSEEN
    return picture_part(part.path("image_url"), part.raw("image_url"), must_be_seen=None)


def _no_text(part: Fields, kind: str) -> str | ContentPart:
    raise text_only(part.path("type"), kind)
