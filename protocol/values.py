"""The nouns that messages carry: sampling, chat, usage, load, and the card of a model.

Their ranges are checked where a message is decoded, so that whoever reads one can reckon with it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

NotNegative = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Finite = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""Neither infinite nor "not a number": both would spread through every sum and comparison."""
Measure = Annotated[float, Meta(ge=0, le=1e15)]
"""Seconds, or something a second."""
Share = Annotated[float, Meta(ge=0, le=1)]
# `(?!\n)`: without it, a line feed may follow the end of the text.
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}(?!\n)$")]
"""Of a gateway or worker: it names files and sockets, and stands in headers."""
Name = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,256}(?!\n)$")]
"""Of a model: any text on one line."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is drawn. Names and defaults are OpenAI's and vLLM's."""

    max_tokens: Count | None = None
    """At most this many new tokens; None: as many as the context has room for."""
    temperature: Measure = 1.0
    top_p: Share = 1.0
    top_k: NotNegative = 0
    """0 switches it off."""
    min_p: Share = 0.0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: NotNegative = 0
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    repetition_penalty: Finite = 1.0
    logit_bias: dict[int, Finite] = {}
    logprobs: NotNegative | None = None
    """How many alternatives to report with each token; None: no log-probabilities."""
    repetition_context_size: NotNegative = 0
    """The repetition penalty looks at the last so many tokens; 0: at all, as in vLLM."""
    xtc_probability: Share = 0.0
    xtc_threshold: Share = 0.1


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message: text, or a medium in one of the message's binary frames."""

    type: str
    text: str = ""
    frame: Count | None = None
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

    prompt_tokens: NotNegative = 0
    cached_tokens: NotNegative = 0
    completion_tokens: NotNegative = 0
    reasoning_tokens: NotNegative = 0
    mtp_drafts: NotNegative = 0
    mtp_accepted: NotNegative = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds that a request spent in the worker, phase by phase."""

    queued_s: Measure = 0.0
    prefill_s: Measure = 0.0
    decode_s: Measure = 0.0


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker has in hand at one moment."""

    running: NotNegative = 0
    waiting: NotNegative = 0
    prefill_tokens: NotNegative = 0
    """Prompt tokens accepted but not yet computed."""
    kv_tokens: NotNegative = 0
    """Tokens that the KV cache holds or has promised."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker takes at most."""

    max_num_seqs: Count = 1
    max_waiting: NotNegative = 0
    kv_tokens: Count | None = None
    """None: not bounded by tokens."""
    on_demand: bool = False
    """It loads its model when told to, and may be told to free it."""
    memory_mb: NotNegative = 0
    """What the model takes when it is loaded (MiB)."""
    memory_budget_mb: NotNegative | None = None
    """Of the worker's node, for all models together (MiB). None: not bounded."""


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    """Of all inputs, one after another: each has `dimensions` numbers of 32 bits, the lowest byte first."""

    dimensions: Count
    data: bytes


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """One for each pair, in their order."""

    scores: tuple[Share, ...]


class Task(StrEnum):
    """What a model is for."""

    GENERATE = "generate"
    EMBED = "embed"
    RERANK = "rerank"

    @property
    def words(self) -> str:
        """What such a model can."""
        match self:
            case Task.GENERATE:
                return "generate text"
            case Task.EMBED:
                return "make embeddings"
            case Task.RERANK:
                return "rank texts"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker serves. Facts that only the files tell are None until these are read."""

    name: Name
    aliases: tuple[Name, ...] = ()
    modalities: tuple[str, ...] = ("text",)
    max_model_len: Count | None = None
    tools: bool = False
    reasoning: bool = False
    engine: str = ""
    fingerprint: str | None = None
    can_resume: bool = False
    model_path: str = ""
    """Where the worker has the model from: a folder of its machine, or a name."""
    task: str = Task.GENERATE
    """One of `Task`."""
