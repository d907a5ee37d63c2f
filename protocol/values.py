"""The nouns that messages carry: sampling, chat, usage, load, and the card of a model."""

from __future__ import annotations

from typing import Any

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is drawn. Names and defaults are OpenAI's and vLLM's."""

    max_tokens: int | None = None
    """At most this many new tokens; None: as many as the context has room for."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 switches it off."""
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    """How many alternatives to report with each token; None: no log-probabilities."""


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message: text, or a medium in one of the message's binary frames."""

    type: str
    text: str = ""
    frame: int | None = None
    """Which binary frame, counted from 1 (frame 0 is the message)."""
    media_type: str = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made in an earlier turn. `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation. `role` is system, user, assistant or tool."""

    role: str
    content: str | tuple[ContentPart, ...] = ""
    name: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that the model may call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one answer. `completion_tokens` counts sampled tokens, the end token too."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    mtp_drafts: int = 0
    mtp_accepted: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds that a request spent in the worker, phase by phase."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker has in hand at one moment."""

    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    """Prompt tokens accepted but not yet computed."""
    kv_tokens: int = 0
    """Tokens that the KV cache holds or has promised."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker takes at most."""

    max_num_seqs: int = 1
    max_waiting: int = 0
    kv_tokens: int | None = None
    """None: not bounded by tokens."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker serves. Facts that only the files tell are None until these are read."""

    name: str
    aliases: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ("text",)
    max_model_len: int | None = None
    tools: bool = False
    reasoning: bool = False
    engine: str = ""
    fingerprint: str | None = None
    can_resume: bool = False
