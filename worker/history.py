"""A conversation in an order that chat templates take: messages in OpenAI's form, never changed. Pure."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from typing import Any

Message = dict[str, Any]
Messages = list[Message]
_GAP = "\n\n"


def in_order(messages: Sequence[Message]) -> Messages:
    """Texts of the system merged to one message at the head; results of tools right behind their calls."""
    return _results_at_their_calls(_system_first(messages))


def with_tools_told(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Messages:
    """The tools described in the system's text, for a template that has no place for them."""
    if not tools:
        return list(messages)
    told = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = f'You can call these functions. A call is JSON: {{"name": ..., "arguments": {{...}}}}.\n{told}'
    return _system_first([*messages, {"role": "system", "content": text}])


def for_strict_templates(messages: Sequence[Message]) -> Messages:
    """Neighbours of one role as one message, where roles are to alternate; ids of calls as nine digits,
    where these are to be short. Results of tools stay apart: each belongs to a call of its own."""
    found: Messages = []
    for message in _short_ids(messages):
        if found and found[-1].get("role") == message.get("role") != "tool":
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)
    return found


def _short_ids(messages: Sequence[Message]) -> Messages:
    numbers: dict[Any, str] = {}

    def short(call_id: Any) -> str:
        return numbers.setdefault(call_id, f"{len(numbers):09d}")

    found: Messages = []
    for message in messages:
        copy = dict(message)
        if calls := copy.get("tool_calls"):
            copy["tool_calls"] = [{**call, "id": short(call.get("id"))} for call in calls]
        if copy.get("role") == "tool":
            copy["tool_call_id"] = short(copy.get("tool_call_id"))
        found.append(copy)
    return found


def _system_first(messages: Sequence[Message]) -> Messages:
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    if not system:
        return others
    first = system[0]
    for message in system[1:]:
        first = _joined(first, message)
    return [first, *others]


def _results_at_their_calls(messages: Messages) -> Messages:
    """Results up to the next turn that calls, in the order of the calls. Whose call is not there
    (clients shorten histories) stay behind those."""
    found: Messages = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        found.append(message)
        names = {call.get("id"): call["function"]["name"] for call in message.get("tool_calls") or ()}
        if not names:
            continue
        end = next((at for at in range(position, len(messages)) if messages[at].get("tool_calls")), None)
        turn = messages[position:end]
        position += len(turn)
        order = list(names)
        results = [m for m in turn if _answers(m, names)]
        results.sort(key=lambda m: order.index(m["tool_call_id"]))
        found += [{**m, "name": m.get("name") or names[m["tool_call_id"]]} for m in results]
        found += [m for m in turn if not _answers(m, names)]
    return found


def _answers(message: Message, calls: Container[Any]) -> bool:
    return message["role"] == "tool" and message.get("tool_call_id") in calls


def _joined(first: Message, second: Message) -> Message:
    joined = {**first, "content": _content(first.get("content"), second.get("content"))}
    calls = [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]
    if calls:
        joined["tool_calls"] = calls
    thoughts = [m["reasoning_content"] for m in (first, second) if m.get("reasoning_content")]
    if thoughts:
        joined["reasoning_content"] = _GAP.join(thoughts)
    return joined


def _content(first: Any, second: Any) -> Any:
    """Texts joined; where one has parts (images), the parts of both."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + _GAP + second
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
