"""One question in the words of every dialect, and their answers, whole or streamed, as one value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import httpx

CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
)
ALL = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA)
WITH_TOOLS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
WITH_STOPS = (CHAT, COMPLETIONS, MESSAGES, OLLAMA)
"""Responses have no field for stop strings."""

_ROOM = {RESPONSES: "max_output_tokens", OLLAMA: "num_predict"}
_STOPS = {MESSAGES: "stop_sequences"}
_ENDS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class Said(NamedTuple):
    """What an answer comes to."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, Any], ...]
    """Names, and arguments decoded where they are JSON."""
    finish: str
    """In the words of chat completions; Ollama has `stop` for calls too."""
    prompt_tokens: int
    completion_tokens: int


def body(
    path: str,
    text: str,
    *,
    model: str = "fake-model",
    max_tokens: int = 200,
    stop: Iterable[str] = (),
    tools: Iterable[str] = (),
    stream: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """A request; `tools` are names of tools that take anything. `fields` go in as they are."""
    turns = [{"role": "user", "content": text}]
    said = {COMPLETIONS: {"prompt": text}, RESPONSES: {"input": text}}.get(path, {"messages": turns})
    settings: dict[str, Any] = {_ROOM.get(path, "max_tokens"): max_tokens}
    if strings := list(stop):
        settings[_STOPS.get(path, "stop")] = strings
    if path == OLLAMA:
        settings = {"options": settings}
    if declared := [_tool(path, name) for name in tools]:
        settings["tools"] = declared
    if stream and path in (CHAT, COMPLETIONS):
        settings["stream_options"] = {"include_usage": True}
    return {"model": model, **said, **settings, "stream": stream, **fields}


def _tool(path: str, name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    if path == MESSAGES:
        return {"name": name, "input_schema": schema}
    if path == RESPONSES:
        return {"type": "function", "name": name, "parameters": schema, "strict": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def ask(http: httpx.Client, path: str, text: str, *, stream: bool = False, **fields: Any) -> Said:
    """Ask, and read the answer to its end. Fails the test when the status is not 200."""
    answer = http.post(path, json=body(path, text, stream=stream, **fields))
    assert answer.status_code == 200, answer.text
    return streamed(path, answer.text) if stream else whole(path, answer.json())


def whole(path: str, answer: dict[str, Any]) -> Said:
    """An answer that came in one piece."""
    return _WHOLE[path](answer)


def streamed(path: str, text: str) -> Said:
    """What a stream adds up to, for a client that reads nothing but the pieces."""
    return _STREAMED[path](events(path, text))


def events(path: str, text: str) -> list[Any]:
    """The events of a stream, without `[DONE]` and signs of life."""
    lines = text.split("\n")
    if path != OLLAMA:
        lines = [line[6:] for line in lines if line.startswith("data: {")]
    return [json.loads(line) for line in lines if line]


def _decoded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]


def _chat(answer: dict[str, Any]) -> Said:
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return Said(
        message["content"] or "",
        message.get("reasoning_content", ""),
        tuple((call["name"], _decoded(call["arguments"])) for call in calls),
        choice["finish_reason"],
        *_counts(answer["usage"]),
    )


def _chat_stream(found: list[Any]) -> Said:
    choices = [choice for event in found for choice in event["choices"]]
    calls: list[list[str]] = []
    for part in (part for choice in choices for part in choice["delta"].get("tool_calls", ())):
        if part["index"] == len(calls):
            calls.append([part["function"]["name"], ""])
        calls[part["index"]][1] += part["function"].get("arguments", "")
    (finish,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return Said(
        "".join(choice["delta"].get("content") or "" for choice in choices),
        "".join(choice["delta"].get("reasoning_content", "") for choice in choices),
        tuple((name, _decoded(arguments)) for name, arguments in calls),
        finish,
        *_counts(found[-1]["usage"]),
    )


def _completion(answer: dict[str, Any]) -> Said:
    (choice,) = answer["choices"]
    return Said(choice["text"], "", (), choice["finish_reason"], *_counts(answer["usage"]))


def _completion_stream(found: list[Any]) -> Said:
    choices = [choice for event in found for choice in event["choices"]]
    (finish,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return Said("".join(c["text"] for c in choices), "", (), finish, *_counts(found[-1]["usage"]))


def _response(answer: dict[str, Any]) -> Said:
    texts = {"message": "", "reasoning": ""}
    calls = []
    for item in answer["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], _decoded(item["arguments"])))
        else:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return _of_response(answer, texts["message"], texts["reasoning"], calls)


def _of_response(answer: dict[str, Any], text: str, reasoning: str, calls: list[tuple[str, Any]]) -> Said:
    ended = "tool_calls" if calls else "stop"
    finish = "length" if answer["status"] == "incomplete" else ended
    usage = answer["usage"]
    return Said(text, reasoning, tuple(calls), finish, usage["input_tokens"], usage["output_tokens"])


def _response_stream(found: list[Any]) -> Said:
    texts = {"response.output_text.delta": "", "response.reasoning_text.delta": ""}
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for event in found:
        kind = event["type"]
        if kind in texts:
            texts[kind] += event["delta"]
        elif kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            names[event["output_index"]] = event["item"]["name"]
        elif kind == "response.function_call_arguments.delta":
            at = event["output_index"]
            arguments[at] = arguments.get(at, "") + event["delta"]
    calls = [(name, _decoded(arguments.get(at) or "{}")) for at, name in names.items()]
    last = found[-1]["response"]
    return _of_response(
        last, texts["response.output_text.delta"], texts["response.reasoning_text.delta"], calls
    )


def _message(answer: dict[str, Any]) -> Said:
    blocks = answer["content"]
    return Said(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        tuple((block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"),
        _ENDS[answer["stop_reason"]],
        answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"],
        answer["usage"]["output_tokens"],
    )


def _message_stream(found: list[Any]) -> Said:
    blocks: list[dict[str, Any]] = []
    for event in found:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "given": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for name in ("text", "thinking"):
                if name in delta:
                    blocks[event["index"]][name] += delta[name]
            blocks[event["index"]]["given"] += delta.get("partial_json", "")
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = _decoded(block["given"] or "{}")
    (end,) = [event for event in found if event["type"] == "message_delta"]
    return _message({"content": blocks, **end["delta"], "usage": end["usage"]})


def _ollama(answer: dict[str, Any]) -> Said:
    message = answer["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return Said(
        message["content"],
        message.get("thinking", ""),
        tuple((call["name"], call["arguments"]) for call in calls),
        answer["done_reason"],
        answer["prompt_eval_count"],
        answer["eval_count"],
    )


def _ollama_stream(found: list[Any]) -> Said:
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    message: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for line in found:
        for name, so_far in message.items():
            message[name] = so_far + line["message"].get(name, type(so_far)())
    return _ollama({**found[-1], "message": message})


_WHOLE = {
    CHAT: _chat,
    COMPLETIONS: _completion,
    RESPONSES: _response,
    MESSAGES: _message,
    OLLAMA: _ollama,
}
_STREAMED = {
    CHAT: _chat_stream,
    COMPLETIONS: _completion_stream,
    RESPONSES: _response_stream,
    MESSAGES: _message_stream,
    OLLAMA: _ollama_stream,
}
