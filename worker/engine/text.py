"""What the engines for text have in common: the calls of the contract, for a model on its thread."""

from __future__ import annotations

import asyncio
import importlib.util
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from protocol.config import EMBEDDED, WorkerConfig
from protocol.models import find_model
from worker.engine.base import BaseEngine, run_blocking_startup_work
from worker.engine.host import ModelHost
from worker.engine.limits import BYTES_PER_TOKEN, Limits
from worker.engine.loading import LoadedModel, Loader
from worker.engine.memory import Memory, MlxMemory
from worker.engine.output import EngineFacts, EngineLoad, EngineOutput, PromptError, Tokens, whole
from worker.engine.prefix_files import PrefixOptions
from worker.engine.prompt import PromptReader, ReadPrompt
from worker.engine.sequence import Stepper
from worker.engine.serving import Serving
from worker.engine.settings import request_settings
from worker.engine.stats import Totals, engine_stats


class TextEngine(BaseEngine):
    """Owns the model and its thread, and from `start` to `stop` the requests in hand."""

    kind: str
    """The word for it in the configuration."""
    packages: tuple[str, ...] = ("mlx_lm",)
    """What has to be installed."""
    can_resume = True
    can_logprobs = True
    can_preempt = True
    can_structure = True
    can_score_prompts = False
    """Whether its stepper gives log-probabilities of a prompt."""

    def __init__(
        self,
        model: str,
        *,
        models: Path,
        name: str | None = None,
        max_num_seqs: int = 8,
        max_waiting: int | None = None,
        max_model_len: int | None = None,
        kv_tokens: int | None = None,
        prefix_cache_mb: int = 256,
        prefix_cache_disk_mb: int = 0,
        adapter: str | None = None,
        draft_model: str | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        memory_limit_mb: int | None = None,
        memory: Memory | None = None,
    ) -> None:
        """`model` is a folder, or `embedded`, which is kept beneath `models`. Raises `ValueError`."""
        self._name = name or Path(model).name
        self._limits = Limits(max_num_seqs, max_waiting, kv_tokens)
        self._prefixes = PrefixOptions(
            prefix_cache_mb << 20, prefix_cache_disk_mb << 20, models / "prefix-cache"
        )
        make_loader = partial(
            self.make_loader,
            None if model == EMBEDDED else find_model(model, models),
            models,
            max_model_len,
            adapter=None if adapter is None else Path(adapter).expanduser(),
            draft=None if draft_model is None else find_model(draft_model, models),
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
        )
        limit = None if memory_limit_mb is None else memory_limit_mb << 20
        self._host = ModelHost(
            make_loader, self.make_stepper, lambda: memory or MlxMemory(limit), self._fault
        )
        self._served: Serving | None = None

    @classmethod
    def from_config(cls, config: WorkerConfig, models: Path) -> Self:
        """Raises `ValueError` for what cannot work."""
        if any(importlib.util.find_spec(package) is None for package in cls.packages):
            raise ValueError(
                f"the engine {cls.kind!r} needs MLX, which is not installed; run: scripts/install"
            )
        make: Callable[..., Self] = cls
        return make(
            config.model,
            models=models,
            name=config.name,
            max_num_seqs=config.slots,
            max_waiting=config.waiting_room,
            max_model_len=config.max_model_len,
            kv_tokens=config.kv_tokens,
            prefix_cache_mb=config.prefix_cache_mb,
            prefix_cache_disk_mb=config.prefix_cache_disk_mb,
            adapter=config.adapter,
            tool_parser=config.tool_parser,
            reasoning_parser=config.reasoning_parser,
            memory_limit_mb=config.memory_limit_mb,
            engine_options=config.engine_options,
        )

    def make_loader(self, *arguments: Any, **options: Any) -> Loader:
        """What loads its models, with arguments as `Loader` has them."""
        return Loader(*arguments, **options)

    @abstractmethod
    def make_stepper(self, model: LoadedModel) -> Stepper:
        """What steps the sequences. Called once the model is loaded, on the engine thread."""

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def is_mllm(self) -> bool:
        return False

    @property
    def tokenizer(self) -> Any:
        return None if self._host.loaded is None else self._host.loaded.model.tokenizer

    @property
    def failed(self) -> bool:
        """Nothing but a new process helps."""
        return self._served is not None and self._served.failed

    def inspect(self) -> int:
        """Weights and prefix cache; the KV cache of running requests comes on top."""
        return (self._host.inspect() + self._prefixes.max_bytes) >> 20

    def prepare_for_start(self) -> None:
        """Load the model. Raises `StopRequested`, `ValueError` and `EmbeddedModelError`."""
        self._host.load()

    async def start(self) -> None:
        if self._served is not None:
            return
        if self._host.loaded is None:
            await run_blocking_startup_work(self.prepare_for_start)
        if self._host.loaded is None:
            raise RuntimeError("the model is not loaded")
        self._served = Serving(self._host.loaded, self._limits)

    async def stop(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.close(RuntimeError("the engine was stopped"))
        await asyncio.to_thread(self._host.unload)

    async def generate(
        self,
        prompt: str | list[int],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> EngineOutput:
        return await whole(self.stream_generate(prompt, max_tokens, temperature, top_p, stop, **kwargs))

    def stream_generate(
        self,
        prompt: str | list[int],
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[EngineOutput]:
        """Also of a prompt of token ids; `echo` gives the prompt back first."""
        settings = request_settings(max_tokens, temperature, top_p, stop, kwargs)
        if settings.echo and settings.sampling.logprobs is not None and not self.can_score_prompts:
            raise PromptError(f"the engine {self.kind!r} gives no log-probabilities of a prompt", "settings")
        request_id = kwargs.get("request_id")
        if isinstance(prompt, str):
            size = len(prompt.encode(errors="replace"))
            return self._serving().admit(
                lambda reader: ReadPrompt(reader.text(prompt)), size, settings, request_id
            )
        size = len(prompt) * BYTES_PER_TOKEN
        return self._serving().admit(
            lambda reader: ReadPrompt(reader.ids(prompt)), size, settings, request_id
        )

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
    ) -> EngineOutput:
        stream = self.stream_chat(messages, max_tokens, temperature, top_p, tools, images, videos, **kwargs)
        return await whole(stream)

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
    ) -> AsyncIterator[EngineOutput]:
        if videos or (images and not self.is_mllm):
            kinds = "text and pictures, no videos: send some of their frames" if self.is_mllm else "text only"
            raise PromptError(f"this model takes {kinds}", "template")
        options = kwargs.pop("chat_template_kwargs", None)
        stop = kwargs.pop("stop", None)
        settings = request_settings(max_tokens, temperature, top_p, stop, kwargs, tools or ())
        native = self.preserve_native_tool_format
        pictures = images or ()
        return self._serving().admit(
            lambda reader: reader.conversation(messages, tools, native, options, pictures),
            _size(messages),
            settings,
            kwargs.get("request_id"),
            sum(map(len, pictures)),
        )

    async def tokenize(self, text: str, *, special: bool, pieces: bool) -> Tokens:
        def read(reader: PromptReader) -> Tokens:
            return reader.tokens(text, reader.plain(text, special=special), pieces=pieces)

        return await self._serving().read(read, len(text))

    async def tokenize_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: dict[str, Any],
        *,
        pieces: bool,
    ) -> Tokens:
        native = self.preserve_native_tool_format

        def read(reader: PromptReader) -> Tokens:
            text = reader.rendered(messages, tools, native, options)
            return reader.tokens(text, reader.of_rendered(text), pieces=pieces)

        return await self._serving().read(read, _size(messages))

    async def detokenize(self, token_ids: list[int], *, pieces: bool) -> Tokens:
        def read(reader: PromptReader) -> Tokens:
            return reader.tokens(reader.text_of(token_ids), token_ids, pieces=pieces)

        return await self._serving().read(read, len(token_ids) * BYTES_PER_TOKEN)

    async def abort_request(self, request_id: str) -> bool:
        if self._served is None:
            return False
        return self._served.abort(request_id, RuntimeError("the request was aborted"))

    def facts(self) -> EngineFacts:
        return self._host.facts

    def load(self) -> EngineLoad:
        return EngineLoad() if self._served is None else self._served.load()

    def load_progress(self) -> tuple[float, str]:
        return self._host.progress

    def request_stop(self) -> None:
        self._host.request_stop()

    def get_stats(self) -> dict[str, Any]:
        """As docs/architecture.md lists them."""
        totals = Totals() if self._served is None else self._served.totals
        loaded = self._host.loaded
        return engine_stats(self.kind, self.load(), totals, self._limits, loaded)

    def get_cache_stats(self) -> dict[str, Any] | None:
        return None if self._host.loaded is None else dict(self._host.loaded.stepper.prefix_stats)

    def clear_runtime_caches(self) -> dict[str, Any] | None:
        """Says what is being freed: it goes before the engine's next step."""
        loaded = self._host.loaded
        if loaded is None:
            return None
        loaded.thread.post(loaded.stepper.clear_prefixes)
        stats = loaded.stepper.prefix_stats
        kept = ("entries", "bytes", "disk_entries", "disk_bytes")
        return {"prefix_cache": {name: stats.get(f"prefix_cache_{name}", 0) for name in kept}}

    def _serving(self) -> Serving:
        if self._served is None:
            raise RuntimeError("the engine is not started")
        return self._served

    def _fault(self, error: Exception) -> None:
        if self._served is not None:
            self._served.fault(error)


def _size(messages: list[dict[str, Any]]) -> int:
    return sum(len(str(message.get("content") or "")) for message in messages)
