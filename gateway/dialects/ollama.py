"""Ollama's chat and generate, the request: bytes to a checked `OllamaRequest`."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from gateway.dialects.base import Asked
from gateway.dialects.fields import Body, Fields, missing, unsupported, wrong_type, wrong_value
from gateway.dialects.formats import word_or_schema
from gateway.dialects.ollama_rows import NUM_PREDICT
from gateway.dialects.openai_sampling import sampling, seed
from gateway.dialects.openai_tools import parse_tools
from gateway.dialects.pictures import joined, picture_part
from protocol.values import ChatMessage, ContentPart, ToolCall

_ROLES = ("system", "user", "assistant", "tool")


class OllamaRequest(Asked, frozen=True, kw_only=True):
    """One request to `/api/chat`, or to `/api/generate`."""

    generate: bool = False


def parse_chat(body: bytes) -> OllamaRequest:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    turns = fields.items("messages") or []
    if not turns:
        raise missing("messages")
    open_calls: deque[str] = deque()
    messages = tuple(_message(turn, f"messages[{i}]", open_calls) for i, turn in enumerate(turns))
    use = parse_tools(fields)
    return _asked(
        fields,
        messages=messages,
        tools=use.tools,
        tool_choice=use.choice,
        parallel_tool_calls=use.parallel,
    )


def parse_generate(body: bytes) -> OllamaRequest:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    prompt = fields.text("prompt") or ""
    if fields.text("suffix"):
        raise unsupported("suffix", "is not available; write your model's own marks into a raw prompt")
    pictures = _pictures(fields)
    if fields.flag("raw"):
        if pictures:
            raise unsupported("images", "cannot be taken with raw: where they stand is not known")
        return _asked(fields, generate=True, prompts=(prompt,))
    system = fields.text("system")
    lead = (ChatMessage(role="system", content=system),) if system else ()
    turn = ChatMessage(role="user", content=joined([*pictures, prompt]))
    return _asked(fields, generate=True, messages=(*lead, turn))


def _asked(fields: Fields, **given: Any) -> OllamaRequest:
    options = fields.object("options") or Fields({}, "options")
    most = NUM_PREDICT.integer(options)
    think = fields.raw("think")
    return OllamaRequest(
        model=fields.text("model") or fields.text("name"),
        sampling=sampling(options, most if most and most > 0 else None),
        seed=seed(options),
        stream=fields.raw("stream") is None or fields.flag("stream"),
        template_options={} if think is None else {"enable_thinking": bool(think)},
        response_format=word_or_schema(fields, "format"),
        **given,
    )


def _message(value: Any, path: str, open_calls: deque[str]) -> ChatMessage:
    """Here calls have no ids: a result belongs to the first call that has none yet."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    role = fields.text("role") or ""
    if role not in _ROLES:
        raise wrong_value(fields.path("role"), f"must be one of {', '.join(_ROLES)}")
    calls = _calls(fields)
    open_calls.extend(call.id for call in calls)
    return ChatMessage(
        role=role,
        content=joined([*_pictures(fields), fields.text("content") or ""]),
        reasoning=fields.text("thinking") or "",
        name=fields.text("tool_name") or "",
        tool_calls=calls,
        tool_call_id=open_calls.popleft() if role == "tool" and open_calls else "",
    )


def _pictures(fields: Fields) -> list[ContentPart]:
    """Base64 without a head."""
    path = fields.path("images")
    refusal = unsupported(path, "cannot be taken: this model takes text only", reason="unsupported_value")
    given = fields.items("images") or []
    return [
        picture_part(f"{path}[{index}]", {"data": data}, must_be_seen=refusal)
        for index, data in enumerate(given)
    ]


def _calls(fields: Fields) -> tuple[ToolCall, ...]:
    found = []
    for index, value in enumerate(fields.items("tool_calls") or []):
        path = f"{fields.path('tool_calls')}[{index}]"
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        function = Fields(value, path).object("function")
        name = None if function is None else function.text("name")
        if function is None or not name:
            raise missing(f"{path}.function.name")
        arguments = msgspec.json.encode(function.raw("arguments") or {}).decode()
        found.append(ToolCall(id=f"{fields.path('')}call{index}", name=name, arguments=arguments))
    return tuple(found)
