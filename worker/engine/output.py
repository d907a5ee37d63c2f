"""What our own engines add to the contract: a richer output, what they know, what they report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from protocol.messages import Embed, Score, TokenLogprob
from protocol.values import Scores, Task, Vectors
from worker.engine.base import GenerationOutput
from worker.parsers.base import Syntax


@dataclass
class EngineOutput(GenerationOutput):
    """One item of one of our engines.

    The first item of a stream may have no token: it tells that the prompt was taken, with
    `prompt_tokens` and `cached_tokens` known. `matched_stop` is the stop string or token id that
    ended the answer. `logprobs` has one entry for each of `tokens`, where they were asked for.

    With `echo`, the first item's text begins with the prompt, which is `echoed`, and it alone has
    `prompt_token_ids` and `prompt_logprobs`. The first of these means nothing: nothing comes before it.
    """

    cached_tokens: int = 0
    matched_stop: str | int | None = None
    in_reasoning: bool = False
    """On the first item: the prompt ends where the model has begun to reason."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    echoed: str = ""
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


async def whole(stream: AsyncIterator[EngineOutput]) -> EngineOutput:
    """The answer that a stream of ours adds up to, with all its token ids."""
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    echoed = last = EngineOutput("")
    async for last in stream:
        tokens += last.tokens
        logprobs += last.logprobs
        echoed = last if last.prompt_token_ids else echoed
    return replace(
        last,
        tokens=tokens,
        logprobs=logprobs,
        prompt_token_ids=echoed.prompt_token_ids,
        prompt_logprobs=echoed.prompt_logprobs,
        new_text="",
    )


class PromptError(ValueError):
    """The request cannot be served as it is.

    `reason` is `context_length_exceeded`, `unsupported` (the model cannot do this at all), or
    `template`, `tokens` or `settings`.
    """

    def __init__(self, message: str, reason: str, *, param: str | None = None) -> None:
        """`param` names the setting that is at fault, where it is one."""
        super().__init__(message)
        self.reason = reason
        self.param = param


class EngineFailed(RuntimeError):  # noqa: N818 (told apart from one request's failure)
    """The engine cannot go on at all; only a new process can. Ends every request in hand."""


class PromptStuck(EngineFailed):
    """The engine cannot go on because this request's prompt was not ready in time. No other worker
    would do better with it."""


class MemoryShort(RuntimeError):  # noqa: N818 (it is no fault of the request)
    """The request was ended, since it needs more memory than there is."""


class ModelUnavailable(RuntimeError):  # noqa: N818 (it is the model that is not there)
    """The model cannot be had at the moment: why, and what to do. Another start may succeed."""


class StopRequested(RuntimeError):  # noqa: N818 (it is no error)
    """Raised out of `prepare_for_start` when `request_stop` was called between two pieces."""


@dataclass(frozen=True)
class EngineFacts:
    """What is known about a model once its files are read."""

    max_model_len: int | None = None
    fingerprint: str | None = None
    eos_token_ids: tuple[int, ...] = field(default=())
    syntax: Syntax = field(default_factory=Syntax)
    """How it marks reasoning and tool calls."""
    task: Task = Task.GENERATE


@dataclass(frozen=True)
class EngineLoad:
    """What an engine has in hand, for heartbeats. Rates are tokens per second, 0 when unmeasured."""

    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    """Of prompts whose first item was given; who admitted the others counts them."""
    kv_tokens: int = 0
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    step_age_s: float = 0.0


@runtime_checkable
class Inspectable(Protocol):
    """An engine that can look at its model without loading it."""

    def inspect(self) -> int:
        """Check the files as far as that is cheap; what the model takes when it is loaded, in MiB.

        Blocking; afterwards `facts` tells what is known so far. Raises `ValueError`.
        """


@runtime_checkable
class FleetEngine(Protocol):
    """What the worker asks of our own engines beyond the contract; a foreign engine has none of it.

    All are called on the event loop, except `load_progress` and `request_stop`, which may be
    called from any thread while `prepare_for_start` runs.
    """

    can_resume: bool
    """Whether `resume_token_ids` is understood."""
    can_logprobs: bool
    """Whether items carry `logprobs` when these are asked for."""
    can_preempt: bool
    """Whether one waits where all get longer than memory allows: answers are then admitted in part."""
    can_structure: bool
    """Whether `structured_outputs`, `tool_choice` and `parallel_tool_calls` are understood."""

    def facts(self) -> EngineFacts: ...

    def load(self) -> EngineLoad: ...

    def load_progress(self) -> tuple[float, str]:
        """How much is loaded, 0 to 1, and what is being done."""

    def request_stop(self) -> None:
        """Make `prepare_for_start` raise `StopRequested` after the piece that it is at."""


@dataclass(frozen=True)
class Tokens:
    """A text and its tokens."""

    text: str
    ids: list[int]
    pieces: list[str] = field(default_factory=list)
    """The text of each token, where it was asked for."""


@runtime_checkable
class Tokenizing(Protocol):
    """An engine that also tells how it reads prompts. Each call raises `PromptError`."""

    async def tokenize(self, text: str, *, special: bool, pieces: bool) -> Tokens: ...

    async def tokenize_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: dict[str, Any],
        *,
        pieces: bool,
    ) -> Tokens: ...

    async def detokenize(self, token_ids: list[int], *, pieces: bool) -> Tokens: ...


@runtime_checkable
class Computing(Protocol):
    """An engine that answers in one piece, with vectors or scores, as the task of its facts says.

    Both raise `EngineBusy`, and `PromptError` for inputs that cannot be taken, before they call `began` with
    the number of all tokens. Cancelled, they give the place back.
    """

    async def embed(self, request: Embed, request_id: str, began: Callable[[int], None]) -> Vectors: ...

    async def score(self, request: Score, request_id: str, began: Callable[[int], None]) -> Scores: ...
