"""The conversation of an Anthropic request: system, turns and content blocks to `ChatMessage`."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from gateway.dialects.fields import Fields, missing, wrong_type, wrong_value
from gateway.dialects.pictures import joined, picture_part, text_only
from protocol.errors import ClusterError
from protocol.values import ChatMessage, ContentPart, ToolCall

logger = logging.getLogger(__name__)

_BILLING = "x-anthropic-billing-header:"
_ROLES = ("user", "assistant", "system")


def parse_conversation(fields: Fields, *, drop_billing_line: bool) -> tuple[ChatMessage, ...]:
    """Raises `ClusterError` with the path of the fault."""
    system = _system(fields, drop_billing_line)
    found = [ChatMessage(role="system", content=system)] if system else []
    turns = fields.items("messages")
    if turns is None:
        raise missing("messages")
    if not turns:
        raise wrong_value("messages", "must have at least one message")
    for index, value in enumerate(turns):
        found += _turn(value, f"messages[{index}]")
    return tuple(found)


def _system(fields: Fields, drop_billing_line: bool) -> str:
    value = fields.raw("system")
    if value is None:
        return ""
    texts = [value] if isinstance(value, str) else _texts(value, fields.path("system"))
    if drop_billing_line and texts and texts[0].startswith(_BILLING):
        # It changes with each request, so that no prefix would ever be found again.
        texts[0] = texts[0].partition("\n")[2]
    return "\n".join(text for text in texts if text)


def _turn(value: Any, path: str) -> list[ChatMessage]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    role = fields.text("role")
    if role is None:
        raise missing(fields.path("role"))
    if role not in _ROLES:
        raise wrong_value(fields.path("role"), f"must be one of {', '.join(_ROLES)}")
    content = fields.raw("content")
    if content is None:
        raise missing(fields.path("content"))
    if isinstance(content, str):
        return [ChatMessage(role=role, content=content)]
    blocks = _blocks(content, fields.path("content"))
    if role == "assistant":
        return [_assistant(blocks)]
    turns = [_tool_result(block) for block in blocks if block.raw("type") == "tool_result"]
    parts = [part for block in blocks if (part := _part(block, sees=role == "user")) is not None]
    # A turn of results alone has no words of the user; those of others come after the results.
    if parts or not turns:
        turns.append(ChatMessage(role=role, content=joined(parts)))
    return turns


def _assistant(blocks: list[Fields]) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.raw("type")
        if kind == "thinking":
            thoughts.append(block.text("thinking") or "")
        elif kind == "tool_use":
            calls.append(_tool_call(block))
        elif (text := _text(block)) is not None:
            texts.append(text)
    return ChatMessage(
        role="assistant", content="".join(texts), reasoning="".join(thoughts), tool_calls=tuple(calls)
    )


def _tool_call(block: Fields) -> ToolCall:
    name = block.text("name")
    if name is None:
        raise missing(block.path("name"))
    given = block.raw("input")
    arguments = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    return ToolCall(id=block.text("id") or "", name=name, arguments=arguments)


def _tool_result(block: Fields) -> ChatMessage:
    call_id = block.text("tool_use_id")
    if call_id is None:
        raise missing(block.path("tool_use_id"))
    content = block.raw("content")
    parts: list[str | ContentPart] = []
    if content is None or isinstance(content, str):
        parts.append(content or "")
    else:
        for each in _blocks(content, block.path("content")):
            part = _picture(each, None) if each.raw("type") == "image" else _text(each)
            parts += [] if part is None else [part]
    if block.flag("is_error"):
        text = parts.pop(0) if parts and isinstance(parts[0], str) else ""
        parts.insert(0, f"Error: {text}")
    return ChatMessage(role="tool", content=joined(parts), tool_call_id=call_id)


def _texts(value: Any, path: str) -> list[str]:
    return [text for block in _blocks(value, path) if (text := _text(block)) is not None]


def _part(block: Fields, *, sees: bool) -> str | ContentPart | None:
    if sees and block.raw("type") == "image":
        return _picture(block, text_only(block.path("type"), "image"))
    return _text(block)


def _picture(block: Fields, refusal: ClusterError | None) -> ContentPart:
    return picture_part(block.path("source"), block.raw("source"), must_be_seen=refusal)


def _blocks(value: Any, path: str) -> list[Fields]:
    if not isinstance(value, list):
        raise wrong_type(path, "a string or an array of blocks", value)
    blocks = []
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong_type(f"{path}[{index}]", "an object", item)
        block = Fields(item, f"{path}[{index}]")
        if block.text("type") is None:
            raise missing(block.path("type"))
        blocks.append(block)
    return blocks


def _text(block: Fields) -> str | None:
    """What a block says in words; None for one that says nothing or is of a kind unknown to us."""
    kind = block.text("type") or ""
    if kind == "text":
        text = block.text("text")
        if text is None:
            raise missing(block.path("text"))
        return text
    if kind == "image":
        raise text_only(block.path("type"), "image")
    if kind == "document":
        return _document(block)
    if kind not in ("tool_result", "tool_use", "thinking", "redacted_thinking"):
        logger.debug("a block of the kind %.40r is left out", kind)
        return _words(block)
    return None


def _words(block: Fields) -> str | None:
    """What later kinds, such as search results, bring along."""
    for words in (block.raw("text"), block.raw("content")):
        if isinstance(words, str):
            return words or None
        if isinstance(words, list):
            return "\n".join(part["text"] for part in words if _has_text(part)) or None
    return None


def _document(block: Fields) -> str:
    source = block.object("source")
    kind = source.text("type") if source is not None else None
    if source is None or kind not in ("text", "content"):
        raise text_only(block.path("type"), f"document of the kind {kind or 'none'}")
    if kind == "text":
        return source.text("data") or ""
    content = source.raw("content")
    return content if isinstance(content, str) else "\n".join(_texts(content, source.path("content")))


def _has_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
