"""OpenAI's responses, the request: bytes to a checked `ResponseRequest`."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects import openai_rows as rows
from gateway.dialects.base import Asked
from gateway.dialects.fields import Body, Fields, unsupported
from gateway.dialects.formats import Format, typed
from gateway.dialects.openai_responses_input import parse_input
from gateway.dialects.openai_responses_tools import Tool, parse_tool_choice, parse_tools
from gateway.dialects.openai_sampling import cache_key, level, sampling
from gateway.dialects.response_store import Reading, ResponseStore, not_kept
from gateway.dialects.template_options import effort_options
from protocol.values import ChatMessage, SamplingParams

_NOT_HERE = {
    "background": "runs nothing in the background",
    "conversation": "keeps no conversations; send previous_response_id, or the whole input",
    "prompt": "has no stored prompts; send input",
}
_LOGPROBS = "message.output_text.logprobs"
_ECHOED = ("instructions", "max_output_tokens", "previous_response_id")


class ResponseRequest(Asked, frozen=True, kw_only=True):
    """One request for a response."""

    declared: tuple[Tool, ...] = ()
    turns: tuple[ChatMessage, ...] = ()
    """The conversation without its instructions: what the next request may build on."""
    echoed: dict[str, Any]
    """What the answer repeats of the request."""
    store: bool = True


def parse(body: bytes, store: ResponseStore) -> ResponseRequest:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    for name, message in _NOT_HERE.items():
        if fields.raw(name):
            raise unsupported(name, f"is not available: this server {message}")
    reading = Reading(store)
    turns = _history(fields, reading) + parse_input(fields, reading.item)
    instructions = fields.text("instructions")
    lead = (ChatMessage(role="system", content=instructions),) if instructions else ()
    tools = parse_tools(fields)
    allowed, choice = parse_tool_choice(fields, tools)
    budget = rows.MAX_OUTPUT_TOKENS.integer(fields)
    drawn = msgspec.structs.replace(sampling(fields, budget), logprobs=_logprobs(fields))
    parallel = fields.raw("parallel_tool_calls") is None or fields.flag("parallel_tool_calls")
    keep = fields.raw("store") is None or fields.flag("store")
    return ResponseRequest(
        model=fields.text("model"),
        messages=lead + (turns or (ChatMessage(role="user"),)),  # without any input: a client's probe
        sampling=drawn,
        stream=fields.flag("stream"),
        tools=tuple(tool.spec for tool in allowed),
        tool_choice=choice,
        parallel_tool_calls=parallel,
        template_options=_template_options(fields),
        response_format=_format(fields),
        declared=tools,
        turns=turns,
        echoed={**_echoed(fields, drawn), "parallel_tool_calls": parallel, "store": keep},
        store=keep,
        cache_key=cache_key(fields),
        level=level(fields),
        kept_for=reading.owners,
    )


def _history(fields: Fields, kept: Reading) -> tuple[ChatMessage, ...]:
    response_id = fields.text("previous_response_id")
    if response_id is None:
        return ()
    refusal = not_kept()
    found = kept.get(response_id, refusal)
    if found is None:
        raise refusal
    return found.turns


def _logprobs(fields: Fields) -> int | None:
    """`top_logprobs` counts only where they are included at all, as with the vendor."""
    alternatives = rows.TOP_LOGPROBS.integer(fields) or 0
    return alternatives if _LOGPROBS in (fields.items("include") or []) else None


def _template_options(fields: Fields) -> dict[str, Any]:
    reasoning = fields.object("reasoning")
    return effort_options(None if reasoning is None else reasoning.text("effort"))


def _echoed(fields: Fields, sampling: SamplingParams) -> dict[str, Any]:
    reasoning = fields.raw("reasoning") or {}
    choice = fields.raw("tool_choice")
    return {
        **{name: fields.raw(name) for name in _ECHOED},
        **{name: fields.text(name) for name in ("user", "prompt_cache_key", "safety_identifier")},
        "metadata": {} if fields.object("metadata") is None else fields.raw("metadata"),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "tools": [_whole_tool(tool) for tool in fields.items("tools") or []],
        "tool_choice": "auto" if choice is None else choice,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": {"format": {"type": "text"}} | {name: text for name, text in _text(fields).items() if text},
        "top_logprobs": sampling.logprobs or 0,
        "truncation": "disabled",
        "background": False,
        "service_tier": "default",
        "max_tool_calls": None,
    }


def _format(fields: Fields) -> Format | None:
    text = fields.object("text")
    given = None if text is None else text.object("format")
    return None if given is None or given.text("type") is None else typed(given, "text.format", flat=True)


def _text(fields: Fields) -> dict[str, Any]:
    given = fields.raw("text") or {}
    return {name: given.get(name) for name in ("format", "verbosity")}


def _whole_tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"parameters": None, "strict": None, **tool} if tool.get("type") == "function" else tool
