"""What all dialects have in common: a request that was checked, an answer, and who writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gateway.failures import Headers
from gateway.pieces import Piece
from protocol.errors import ClusterError
from protocol.messages import Finished
from protocol.values import ChatMessage, SamplingParams, ToolSpec, Usage


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request, checked. Either `messages`, or `prompts`, each of which gets `n` answers."""

    model: str | None
    """None: the only model there is."""
    sampling: SamplingParams
    seed: int | None = None
    stream: bool = False
    messages: tuple[ChatMessage, ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    n: int = 1
    echo: bool = False
    """The worker gives the prompt back, with its log-probabilities where these are asked for."""
    prompt_only: bool = False
    """With `echo`: nothing comes after it."""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or `named:` and the name of a tool."""
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    """As `Generate` has it."""
    template_options: dict[str, Any] = {}
    cache_key: str = ""
    """What the client calls requests that begin alike."""
    level: int = 0
    """The class in the queue with which the client is content, where its key has an earlier one."""
    kept_for: dict[str, ClusterError] = {}
    """Whose earlier answers it refers to, by the names of their API keys, and what others are told."""


class Identity(msgspec.Struct, frozen=True):
    """What all parts of one answer have in common."""

    token: str
    """Random; the ids of the answer and of its parts are made of it."""
    created: int
    model: str
    """As the client asked for it, also where that is an alias."""
    fingerprint: str | None
    owner: str = ""
    """The name of the API key by which it was asked for."""


class Answered(msgspec.Struct, frozen=True):
    """One complete answer."""

    pieces: tuple[Piece, ...]
    finished: Finished


class Writer(Protocol):
    """The bytes of one streamed answer. Each method gives what it adds, in the order of the calls."""

    def start(self, usage: Usage) -> bytes:
        """The first worker began; `usage` has the tokens of the prompt."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """News of one of the answers."""

    def text(self, index: int, text: str, completion_tokens: int) -> bytes:
        """The same of a piece that has nothing but this text and these tokens: most have."""

    def finish(self, index: int, finished: Finished) -> bytes:
        """One of the answers is complete."""

    def end(self, usage: Usage) -> bytes:
        """All answers are; `usage` has the sum of their tokens."""

    def keepalive(self) -> bytes:
        """Nothing was written for a while."""

    def fail(self, error: ClusterError) -> bytes:
        """A failure after the status was sent."""


class Dialect(Protocol):
    """One way to speak HTTP about generation."""

    stream_headers: Headers

    def parse(self, body: bytes) -> Asked:
        """Raises `ClusterError`."""

    def writer(self, asked: Any, identity: Identity) -> Writer: ...

    def whole(self, asked: Any, identity: Identity, answers: Sequence[Answered], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""


def total(usages: Sequence[Usage], n: int) -> Usage:
    """The tokens of all answers. Each prompt, which has `n` of them, counts once."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages[::n]),
        cached_tokens=sum(usage.cached_tokens for usage in usages[::n]),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        mtp_drafts=sum(usage.mtp_drafts for usage in usages),
        mtp_accepted=sum(usage.mtp_accepted for usage in usages),
    )
