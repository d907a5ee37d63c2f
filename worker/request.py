"""From a `Generate` message to the call of an engine. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from protocol.messages import TASKS, Embed, Generate, Score, Tokenize, Work
from protocol.values import ChatMessage, ContentPart, SamplingParams, Task
from worker.admission import BYTES_PER_TOKEN
from worker.history import in_order

UNKNOWN_ROOM = 4096
"""Tokens of an answer at most, where neither the request nor the model says."""
MOST_ROOM = 2**31 - 1
"""More is asked for by those who mean "all"; sums of it must stay numbers that can be sent."""

_PLAIN = {"max_tokens", "temperature", "top_p", "top_k", "min_p", "stop"}
_DEFAULTS = SamplingParams()


def unsupported(
    request: Generate,
    *,
    tools: bool,
    ids: bool,
    logprobs: bool,
    shapes: bool,
    frames: int | None = None,
) -> tuple[str, str] | None:
    """The field of what this worker cannot do, and words about it. None: it can do all of it.

    `ids`: whether its engine takes prompts of token ids, and gives prompts back. `frames`: how many pictures
    came along; None: its engine takes none.
    """
    model = repr(request.model)
    form = (request.response_format or {}).get("field", "response_format")
    named = [part.frame or 0 for part in pictures(request)]
    problems = (
        (
            isinstance(request.prompt, tuple) and not ids,
            "prompt",
            "prompts of token ids are not supported; send text",
        ),
        (
            request.echo and not ids,
            "echo",
            "echo with logprobs, or with max_tokens 0, is not supported by this worker's engine",
        ),
        (
            request.sampling.logprobs is not None and not logprobs,
            "logprobs",
            "logprobs are not supported by this worker's engine; leave them out",
        ),
        (
            request.response_format is not None and not shapes,
            form,
            f"{form} is not supported by this worker's engine; leave it out",
        ),
        (
            is_forced(request) and not shapes,
            "tool_choice",
            f"tool_choice {request.tool_choice!r:.80} is not supported by this worker's engine; use 'auto'",
        ),
        (
            bool(chat_tools(request)) and not (tools or is_forced(request)),
            "tools",
            f"the model {model} does not use tools by itself; leave `tools` out, or make it call one with"
            " `tool_choice`",
        ),
        (bool(named) and frames is None, "messages", f"the model {model} takes text only"),
        (
            max(named, default=0) > (frames or 0),
            "messages",
            "a picture of the request did not come along",
        ),
    )
    return next(((field, words) for found, field, words in problems if found), None)


def misplaced(request: Work, task: Task) -> tuple[str, str] | None:
    """The same of a request that the model, which is for that task, is not for at all."""
    wanted = TASKS[type(request)]
    if wanted is task:
        return None
    return "model", f"the model {request.model!r} cannot {wanted.words}; it is there to {task.words}"


def pictures(request: Generate) -> list[ContentPart]:
    """The parts that are pictures, in the order of the conversation."""
    return [part for message in request.messages for part in _parts(message) if part.frame is not None]


def images(request: Generate, frames: Sequence[bytes]) -> list[str]:
    """Its pictures as the contract has them: data URLs, one for each part that is one."""
    return [
        f"data:{part.media_type};base64,{base64.b64encode(frames[(part.frame or 1) - 1]).decode()}"
        for part in pictures(request)
    ]


def prompt_bytes(request: Work) -> int:
    """The size of the prompt's text, or of all texts together."""
    if isinstance(request, Embed):
        ids = sum(len(each) for each in request.token_ids)
        return _size(request.inputs) + ids * BYTES_PER_TOKEN
    if isinstance(request, Score):
        times = len(request.texts) if len(request.queries) == 1 else 1
        return _size(request.texts) + times * _size(request.queries)
    if isinstance(request.prompt, str):
        return len(request.prompt.encode())
    if request.prompt is not None:
        return len(request.prompt) * BYTES_PER_TOKEN
    return _size([text for message in request.messages for text in _texts(message)])


def _size(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def room(request: Work, max_model_len: int | None) -> int:
    """How many new tokens are asked for at most."""
    if not isinstance(request, Generate):
        return 0
    wanted = 0 if request.prompt_only else request.sampling.max_tokens
    if wanted is not None:
        return min(wanted, MOST_ROOM)
    return UNKNOWN_ROOM if max_model_len is None else max_model_len


def engine_arguments(
    request: Generate, engine_id: str, max_model_len: int | None, *, can_resume: bool
) -> dict[str, Any]:
    """The keyword arguments of `stream_chat` or `stream_generate`, under vLLM's names."""
    sampling = request.sampling
    arguments = {
        "max_tokens": room(request, max_model_len),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "request_id": engine_id,
        "attempt": request.attempt,
        "seed": request.seed,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
    }
    for name in SamplingParams.__struct_fields__:
        value = getattr(sampling, name)
        if name not in _PLAIN and value != getattr(_DEFAULTS, name):
            arguments[name] = list(value) if isinstance(value, tuple) else value
    if request.echo:
        arguments["echo"] = True
    if request.response_format is not None:
        arguments["structured_outputs"] = request.response_format
    if is_forced(request):
        arguments["tool_choice"] = _choice(request.tool_choice)
    if is_shaped(request) and not request.parallel_tool_calls:
        arguments["parallel_tool_calls"] = False
    if request.resume_token_ids and can_resume:
        arguments["resume_token_ids"] = list(request.resume_token_ids)
    if request.template_options and request.prompt is None:
        arguments["chat_template_kwargs"] = dict(request.template_options)
    return arguments


def is_forced(request: Generate) -> bool:
    """Whether the answer has to be a call."""
    return request.tool_choice not in ("auto", "none")


def is_shaped(request: Generate) -> bool:
    """Whether the answer follows a grammar."""
    return request.response_format is not None or is_forced(request)


def _choice(choice: str) -> str | dict[str, Any]:
    """In OpenAI's form."""
    kind, _, name = choice.partition(":")
    return {"type": "function", "function": {"name": name}} if kind == "named" else kind


def chat_messages(request: Generate | Tokenize) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form, in an order that chat templates take."""
    return in_order([_chat_message(message) for message in request.messages])


def chat_tools(request: Generate | Tokenize) -> list[dict[str, Any]] | None:
    """The tools in OpenAI's form; None where there are none, or none may be called."""
    if not request.tools or request.tool_choice == "none":
        return None
    return [{"type": "function", "function": msgspec.to_builtins(tool)} for tool in request.tools]


def _parts(message: ChatMessage) -> tuple[ContentPart, ...]:
    return () if isinstance(message.content, str) else message.content


def _texts(message: ChatMessage) -> list[str]:
    return [message.content] if isinstance(message.content, str) else [part.text for part in message.content]


def _part(part: ContentPart) -> dict[str, Any]:
    return {"type": part.type, "text": part.text} if part.frame is None else {"type": part.type}


def _chat_message(message: ChatMessage) -> dict[str, Any]:
    parts = _parts(message)
    content: Any = [_part(part) for part in parts] if parts else message.content
    given: dict[str, Any] = {"role": message.role, "content": content or ""}
    if message.name:
        given["name"] = message.name
    if message.reasoning:
        given["reasoning_content"] = message.reasoning
    if message.tool_call_id:
        given["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        given["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return given
