"""The engine contract: what every engine is to the worker that serves it.

Names, parameters and defaults are those of `vllm_mlx.engine.base` (waybarrios/vllm-mlx), so that
engines written for one serve in the other. Further parameters travel in `**kwargs` under vLLM's
names.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)


@dataclass
class GenerationOutput:
    """A whole answer, or one item of a stream.

    `text` is everything so far and `new_text` what this item adds. `tokens` are the ids of this
    item in a stream, and all ids in a whole answer. `finish_reason` is None until the last item.
    `mtp_drafts` and `mtp_accepted` count tokens proposed by a draft, and accepted of them, so far.
    """

    text: str
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = "stop"
    mtp_drafts: int = 0
    mtp_accepted: int = 0
    new_text: str = ""
    finished: bool = True


class EngineBusy(RuntimeError):  # noqa: N818 (the contract's name)
    """The engine cannot take the request now. Raised before any token of it, never later."""

    code = "text_generation_busy"


@contextmanager
def suspend_cancellation() -> Iterator[None]:
    """Clear the current task's pending cancellations, and make as many again on leaving.

    So clean-up in the body can await. Without a current task it does nothing.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    pending = 0
    if task is not None and hasattr(task, "uncancel"):
        pending = task.cancelling()
        for _ in range(pending):
            task.uncancel()
    try:
        yield
    finally:
        if task is not None:
            for _ in range(pending):
                task.cancel()


async def run_blocking_startup_work(work: Callable[[], Any]) -> None:
    """Run `work` in a thread, and never return before that thread has ended.

    Cancelled meanwhile, it waits on, absorbing further cancels, and raises `CancelledError` then,
    whatever became of `work`. Otherwise an exception of `work` propagates.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait({thread})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not thread.cancelled():
            thread.exception()  # retrieved, so that it is not reported as lost
        raise cancelled
    thread.result()


async def cleanup_startup_cancellation(cleanup: Callable[[], Awaitable[None]]) -> None:
    """Run `cleanup` while a cancellation is being handled, so that its failure does not replace it.

    A failure is logged and swallowed; `KeyboardInterrupt` and `SystemExit` are raised.
    """
    with suspend_cancellation():
        try:
            await cleanup()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            logger.exception("clean-up after an interrupted start failed")


class BaseEngine(ABC):
    """One model, loaded or not. Called from the event loop only, but for `prepare_for_start`."""

    _preserve_native_tool_format = False

    @property
    @abstractmethod
    def model_name(self) -> str:
        """The name under which the model is served."""

    @property
    @abstractmethod
    def is_mllm(self) -> bool:
        """Whether the model takes images or videos."""

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    def preserve_native_tool_format(self) -> bool:
        """Whether tool messages reach the chat template in the model's own form, not as text."""
        return self._preserve_native_tool_format

    @preserve_native_tool_format.setter
    def preserve_native_tool_format(self, value: bool) -> None:
        self._preserve_native_tool_format = value

    def prepare_for_start(self) -> None:  # noqa: B027 (a hook that may stay empty)
        """Blocking start-up work: read weights, build kernels. Runs in a thread before `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Load what is not yet loaded. Idempotent."""

    @abstractmethod
    async def stop(self) -> None:
        """End running requests and free memory. Idempotent; works after a failed `start`."""

    @abstractmethod
    async def generate(
        self,
        prompt: str,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> GenerationOutput:
        """Complete `prompt`. Raises `EngineBusy`."""

    @abstractmethod
    def stream_generate(
        self,
        prompt: str,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationOutput]:
        """Complete `prompt`, item by item; closing the iterator aborts and frees the slot.

        `EngineBusy` comes from the call itself or, at the latest, from the first item.
        """

    @abstractmethod
    async def chat(
        self,
        messages: list[dict[str, Any]],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        tools: list[dict[str, Any]] | None = None,
        images: list[str] | None = None,
        videos: list[str] | None = None,
        **kwargs: Any,
    ) -> GenerationOutput:
        """Answer a conversation. Raises `EngineBusy`."""

    @abstractmethod
    def stream_chat(
        self,
        messages: list[dict[str, Any]],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        tools: list[dict[str, Any]] | None = None,
        images: list[str] | None = None,
        videos: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationOutput]:
        """Answer a conversation, item by item, under the rules of `stream_generate`."""

    def get_stats(self) -> dict[str, Any]:
        """Figures about the engine, for people."""
        return {}

    def get_cache_stats(self) -> dict[str, Any] | None:
        """Figures about its caches, or None where it has none."""
        return None

    def clear_runtime_caches(self) -> dict[str, Any] | None:
        """Free the caches; says what was freed, or None where there is nothing to free."""
        return None

    async def abort_request(self, request_id: str) -> bool:
        """End a waiting or running request. False when there is none of that id."""
        return False
