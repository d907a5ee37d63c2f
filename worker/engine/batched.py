"""The batched engine: many requests through one model at once, joining and leaving between steps."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.config import EMBEDDED, WorkerConfig
from worker.engine.base import BaseEngine, run_blocking_startup_work
from worker.engine.limits import Limits
from worker.engine.loading import LoadedModel, Loader
from worker.engine.output import EngineFacts, EngineLoad, EngineOutput, PromptError, whole
from worker.engine.serving import Serving
from worker.engine.settings import request_settings
from worker.engine.thread import EngineThread

if TYPE_CHECKING:
    from worker.engine.batch import Batch


class BatchedEngine(BaseEngine):
    """Owns the model and its thread, and from `start` to `stop` the requests in hand."""

    can_resume = True

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
    ) -> None:
        """`model` is a folder, or `embedded`, which is kept beneath `models`. Raises `ValueError`."""
        folder = None if model == EMBEDDED else Path(model).expanduser()
        if folder is not None and not folder.is_dir():
            raise ValueError(
                f"there is no model folder at {folder}; give a folder in MLX format, or 'embedded'"
            )
        self._name = name or Path(model).name
        self._limits = Limits(max_num_seqs, max_waiting, kv_tokens)
        self._prefix_cache_bytes = prefix_cache_mb << 20
        self._make_loader = partial(Loader, folder, models, max_model_len)
        self._loader = self._make_loader()
        self._model: LoadedModel | None = None
        self._batch: Batch | None = None
        self._thread: EngineThread | None = None
        self._served: Serving | None = None

    @classmethod
    def from_config(cls, config: WorkerConfig, models: Path) -> BatchedEngine:
        """Raises `ValueError` for what cannot work."""
        if importlib.util.find_spec("mlx_lm") is None:
            raise ValueError("the engine 'batched' needs MLX, which is not installed; run: scripts/install")
        if config.engine_options:
            raise ValueError(
                f"the engine 'batched' has no engine_options; remove {sorted(config.engine_options)}"
            )
        return cls(
            config.model,
            models=models,
            name=config.name,
            max_num_seqs=config.max_num_seqs,
            max_waiting=config.waiting_room,
            max_model_len=config.max_model_len,
            kv_tokens=config.kv_tokens,
            prefix_cache_mb=config.prefix_cache_mb,
        )

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def is_mllm(self) -> bool:
        return False

    @property
    def tokenizer(self) -> Any:
        return None if self._model is None else self._model.tokenizer

    @property
    def failed(self) -> bool:
        """Nothing but a new process helps."""
        return self._served is not None and self._served.failed

    def prepare_for_start(self) -> None:
        """Load the model on the engine thread, piece by piece.

        Raises `StopRequested`, `ValueError` and `EmbeddedModelError`.
        """
        if self._model is not None:
            return
        if self._thread is None:
            self._thread = EngineThread("engine", self._fault)
        thread, pieces = self._thread, self._loader.pieces()

        def one_more() -> bool:
            return any(True for _piece in pieces)  # takes the next piece only

        while thread.call(one_more):
            pass
        thread.call(self._make_batch)

    async def start(self) -> None:
        if self._served is not None:
            return
        if self._model is None:
            await run_blocking_startup_work(self.prepare_for_start)
        if self._model is None or self._batch is None or self._thread is None:
            raise RuntimeError("the model is not loaded")
        self._served = Serving(self._model, self._batch, self._thread, self._limits)
        self._thread.drive(self._served.step)

    async def stop(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.close(RuntimeError("the engine was stopped"))
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(self._unload, thread)
        self._loader = self._make_loader()

    async def generate(
        self,
        prompt: str,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> EngineOutput:
        return await whole(self.stream_generate(prompt, max_tokens, temperature, top_p, stop, **kwargs))

    def stream_generate(
        self,
        prompt: str,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 0.9,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[EngineOutput]:
        settings = request_settings(max_tokens, temperature, top_p, stop, kwargs)
        size = len(prompt.encode(errors="replace"))
        request_id = kwargs.get("request_id")
        return self._serving().admit(lambda reader: reader.text(prompt), size, settings, request_id)

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
        if images or videos:
            raise PromptError("this model takes text only, no images and no videos", "template")
        settings = request_settings(max_tokens, temperature, top_p, kwargs.pop("stop", None), kwargs)
        native = self.preserve_native_tool_format
        size = sum(len(str(message.get("content") or "")) for message in messages)
        request_id = kwargs.get("request_id")
        return self._serving().admit(
            lambda reader: reader.chat(messages, tools, native), size, settings, request_id
        )

    async def abort_request(self, request_id: str) -> bool:
        if self._served is None:
            return False
        return self._served.abort(request_id, RuntimeError("the request was aborted"))

    def facts(self) -> EngineFacts:
        return EngineFacts() if self._model is None else self._model.facts

    def load(self) -> EngineLoad:
        return EngineLoad() if self._served is None else self._served.load()

    def load_progress(self) -> tuple[float, str]:
        return self._loader.progress if self._model is None else (1.0, "loaded")

    def request_stop(self) -> None:
        self._loader.request_stop()

    def get_stats(self) -> dict[str, Any]:
        load = self.load()
        return {
            "engine": "batched",
            "running": load.running,
            "waiting": load.waiting,
            "prefill_tokens": load.prefill_tokens,
            "kv_tokens": load.kv_tokens,
            "decode_tokens_per_s": round(load.decode_tokens_per_s, 1),
            "prefill_tokens_per_s": round(load.prefill_tokens_per_s, 1),
            "failed": self.failed,
        }

    def get_cache_stats(self) -> dict[str, Any] | None:
        return None if self._batch is None else dict(self._batch.prefix_stats)

    def clear_runtime_caches(self) -> dict[str, Any] | None:
        """Says what is being freed: it goes before the engine's next step."""
        if self._batch is None or self._thread is None:
            return None
        self._thread.post(self._batch.clear_prefixes)
        stats = self._batch.prefix_stats
        return {"prefix_cache": {"entries": stats["entries"], "bytes": stats["bytes"]}}

    def _serving(self) -> Serving:
        if self._served is None:
            raise RuntimeError("the engine is not started")
        return self._served

    def _make_batch(self) -> None:
        from worker.engine.batch import Batch, generator_maker  # noqa: PLC0415 (OpenBLAS came first)
        from worker.engine.prefix_cache import PrefixCache  # noqa: PLC0415

        model, slots = self._loader.result, self._limits.max_num_seqs
        if model is None:
            raise RuntimeError("the model is not loaded")
        self._batch = Batch(
            generator_maker(model.network, slots), slots, PrefixCache(self._prefix_cache_bytes)
        )
        self._model = model

    def _fault(self, error: Exception) -> None:
        if self._served is not None:
            self._served.fault(error)

    def _unload(self, thread: EngineThread) -> None:
        def drop() -> None:
            thread.drive(None)
            if self._batch is not None:
                self._batch.close()
            self._batch = self._model = None

        thread.call(drop)
        thread.end()
