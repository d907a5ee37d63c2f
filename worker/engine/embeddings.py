"""The engine for models that make vectors of texts, or scores of pairs, in batches of about one length."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from protocol.config import EMBEDDED, WorkerConfig
from protocol.messages import Embed, Score
from protocol.models import find_model
from protocol.values import Scores, Task, Vectors
from worker.engine.base import BaseEngine, run_blocking_startup_work
from worker.engine.encoder_loading import EncoderLoader, LoadedEncoder
from worker.engine.encoding import Encoding, Job
from worker.engine.limits import Limits
from worker.engine.output import EngineFacts, EngineFailed, EngineLoad, EngineOutput, PromptError, Tokens
from worker.engine.thread import EngineThread

if TYPE_CHECKING:
    from worker.engine.encoder import Numbers, Row

_PACKAGES = ("mlx", "mlx_vlm")
_MOST_BYTES = 60 << 20
"""Of the vectors of one request: they travel in one message."""


class EmbeddingsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_options`."""

    matryoshka: bool | None = None
    """Whether vectors may be cut (`dimensions`); None: as the model's files say."""


class EmbeddingsEngine(BaseEngine):
    """Owns the model, its thread, and the requests in hand. Event loop, but for `prepare_for_start`."""

    can_resume = can_logprobs = can_preempt = can_structure = False

    def __init__(
        self,
        model: str,
        *,
        models: Path,
        name: str | None = None,
        max_num_seqs: int = 8,
        max_waiting: int | None = None,
        max_model_len: int | None = None,
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`model` is a folder, or the name of one beneath `models`. Raises `ValueError`."""
        if model == EMBEDDED:
            raise ValueError("the embedded model generates text; name one that makes embeddings or ranks")
        try:
            self._options = msgspec.convert(dict(engine_options or {}), EmbeddingsOptions)
        except msgspec.ValidationError as error:
            raise ValueError(f"engine_options of the engine 'embeddings': {error}") from error
        self._name = name or Path(model).name
        self._path = find_model(model, models)
        self._max_model_len = max_model_len
        self._limits = Limits(max_num_seqs, max_waiting)
        self._facts = EngineFacts(max_model_len, task=Task.EMBED)
        self._loader = EncoderLoader(self._path, max_model_len)
        self._thread: EngineThread | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._encoding: Encoding | None = None
        self._failure: EngineFailed | None = None
        self._jobs: dict[Job, asyncio.Future[None]] = {}
        self._in_hand = 0
        """Requests; of those in `_jobs`, the texts are read."""

    @classmethod
    def from_config(cls, config: WorkerConfig, models: Path) -> Self:
        """Raises `ValueError` for what cannot work."""
        if any(importlib.util.find_spec(package) is None for package in _PACKAGES):
            raise ValueError(
                "the engine 'embeddings' needs mlx-vlm, which is not installed; run: scripts/install"
            )
        return cls(
            config.model,
            models=models,
            name=config.name,
            max_num_seqs=config.slots,
            max_waiting=config.waiting_room,
            max_model_len=config.max_model_len,
            engine_options=config.engine_options,
        )

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def is_mllm(self) -> bool:
        return False

    @property
    def tokenizer(self) -> Any:
        return None if self._loader.result is None else self._loader.result.rows.tokenizer

    @property
    def failed(self) -> bool:
        """Nothing but a new process helps."""
        return self._failure is not None

    # --- life ---

    def inspect(self) -> int:
        size, self._facts = self._loader.inspect()
        return size >> 20

    def prepare_for_start(self) -> None:
        if self._loader.result is not None:
            return
        if self._thread is None:
            self._thread = EngineThread("engine", self._fault)
        pieces = self._loader.pieces()
        while self._thread.call(lambda: any(True for _piece in pieces)):  # takes the next piece only
            pass
        _size, self._facts = self._loader.inspect()

    async def start(self) -> None:
        if self._encoding is not None:
            return
        await run_blocking_startup_work(self.prepare_for_start)
        loaded, thread = self._loader.result, self._thread
        if loaded is None or thread is None:
            raise RuntimeError("the model is not loaded")
        self._loop = asyncio.get_running_loop()
        self._reading = ThreadPoolExecutor(1, "reading")
        self._encoding = Encoding(loaded.encoder)
        thread.drive(self._encoding.step)

    async def stop(self) -> None:
        thread, self._thread = self._thread, None
        reading, self._reading = self._reading, None
        self._encoding = None
        self._loader = EncoderLoader(self._path, self._max_model_len)
        self._abort_all(RuntimeError("the engine was stopped"))
        if reading is not None:
            reading.shutdown(wait=False, cancel_futures=True)
        if thread is not None:
            await asyncio.to_thread(_end, thread)

    # --- what it does ---

    async def embed(self, request: Embed, request_id: str, began: Callable[[int], None]) -> Vectors:
        """As `Computing` has it."""
        loaded = self._loaded()
        native = loaded.encoder.dimensions
        wanted = request.dimensions or native
        self._check_dimensions(wanted, native, loaded)
        if wanted * 4 * max(len(request.inputs), len(request.token_ids)) > _MOST_BYTES:
            raise PromptError("so many vectors are too much for one answer; send fewer inputs", "settings")
        found = await self._computed(lambda: loaded.rows.embed(request), began)
        from worker.engine.encoder import shortened  # noqa: PLC0415 (OpenBLAS came first)

        return Vectors(dimensions=wanted, data=shortened(found, wanted).tobytes())

    async def score(self, request: Score, request_id: str, began: Callable[[int], None]) -> Scores:
        """As `Computing` has it."""
        loaded = self._loaded()
        found = await self._computed(lambda: loaded.rows.score(request), began)
        return Scores(scores=tuple(found[:, 0].tolist()))

    def _check_dimensions(self, wanted: int, native: int, loaded: LoadedEncoder) -> None:
        if wanted > native:
            why = f"dimensions is {wanted}, but this model's vectors have {native}; ask for fewer"
            raise PromptError(why, "unsupported", param="dimensions")
        cuts = loaded.matryoshka if self._options.matryoshka is None else self._options.matryoshka
        if wanted < native and not cuts:
            why = f"dimensions is {wanted}, but this model was not made for shorter vectors than {native}"
            raise PromptError(f"{why}; leave it out", "unsupported", param="dimensions")

    async def _computed(self, read: Callable[[], list[Row]], began: Callable[[int], None]) -> Numbers:
        """The numbers of all texts, in their order. Cancelled, they are not computed any more."""
        import numpy as np  # noqa: PLC0415 (only when chosen)

        self._limits.check_places(self._in_hand)
        self._in_hand += 1
        job: Job | None = None
        try:
            rows = await self._loop.run_in_executor(self._reading, read)
            encoding, thread = self._encoding, self._thread
            if encoding is None or thread is None:
                raise RuntimeError("the engine was stopped")
            job = Job(rows, self._done)
            began(job.tokens)
            self._jobs[job] = future = self._loop.create_future()
            encoding.last_step = time.monotonic() if len(self._jobs) == 1 else encoding.last_step
            thread.post(lambda: encoding.add(job))
            await future
            return np.stack([job.found[place] for place in range(len(rows))])
        finally:
            self._in_hand -= 1
            if job is not None:
                job.left = True
                self._jobs.pop(job, None)

    def _done(self, job: Job, error: Exception | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, job, error)

    def _settle(self, job: Job, error: Exception | None) -> None:
        future = self._jobs.get(job)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _fault(self, error: Exception) -> None:
        self._failure = EngineFailed(f"the engine thread met a fault: {error}")
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort_all, self._failure)

    def _abort_all(self, error: Exception) -> None:
        for job in tuple(self._jobs):
            self._settle(job, error)

    def _loaded(self) -> LoadedEncoder:
        if self._failure is not None:
            raise self._failure
        if self._loader.result is None or self._encoding is None:
            raise RuntimeError("the engine is not started")
        return self._loader.result

    # --- tokens ---

    async def tokenize(self, text: str, *, special: bool, pieces: bool) -> Tokens:
        tokenizer = self._loaded().rows.tokenizer
        return self._tokens(text, tokenizer.encode(text, add_special_tokens=special), pieces)

    async def tokenize_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: dict[str, Any],
        *,
        pieces: bool,
    ) -> Tokens:
        raise PromptError("this model takes no conversations", "unsupported")

    async def detokenize(self, token_ids: list[int], *, pieces: bool) -> Tokens:
        rows = self._loaded().rows
        if max(token_ids) >= rows.vocabulary:
            raise PromptError(f"this model's token ids are 0 to {rows.vocabulary - 1}", "tokens")
        return self._tokens(rows.tokenizer.decode(token_ids), token_ids, pieces)

    def _tokens(self, text: str, ids: list[int], pieces: bool) -> Tokens:
        decode = self._loaded().rows.tokenizer.decode
        return Tokens(text, ids, [decode([each]) for each in ids] if pieces else [])

    # --- figures ---

    def facts(self) -> EngineFacts:
        return self._facts

    def load(self) -> EngineLoad:
        encoding, thread = self._encoding, self._thread
        if encoding is None or thread is None:
            return EngineLoad()
        running = min(self._in_hand, self._limits.max_num_seqs)
        idle_s = time.monotonic() - encoding.last_step if self._jobs else 0.0
        return EngineLoad(
            running=running,
            waiting=self._in_hand - running,
            prefill_tokens=sum(job.tokens for job in self._jobs),
            prefill_tokens_per_s=encoding.rate.value,
            step_age_s=max(idle_s, thread.busy_s),
        )

    def load_progress(self) -> tuple[float, str]:
        return self._loader.progress

    def request_stop(self) -> None:
        self._loader.request_stop()

    def get_stats(self) -> dict[str, Any]:
        """As docs/architecture.md lists them."""
        load, encoding = self.load(), self._encoding
        return {
            "engine": "embeddings",
            "running": load.running,
            "waiting": load.waiting,
            "texts": 0 if encoding is None else encoding.texts,
            "batches": 0 if encoding is None else encoding.batches,
            "prefill_tokens_per_s": load.prefill_tokens_per_s,
        }

    # --- what it does not ---

    async def generate(self, prompt: str, *args: Any, **kwargs: Any) -> EngineOutput:
        self._refuse()

    def stream_generate(self, prompt: str, *args: Any, **kwargs: Any) -> AsyncIterator[EngineOutput]:
        self._refuse()

    async def chat(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> EngineOutput:
        self._refuse()

    def stream_chat(
        self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any
    ) -> AsyncIterator[EngineOutput]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        wanted, own = Task.GENERATE.words, self._facts.task.words
        raise PromptError(f"the model {self._name!r} cannot {wanted}; it is there to {own}", "unsupported")


def _end(thread: EngineThread) -> None:
    """Free what MLX keeps, on its own thread, and end that."""

    def free() -> None:
        gc.collect()
        if mx := sys.modules.get("mlx.core"):
            mx.clear_cache()

    thread.drive(None)
    thread.call(free)
    thread.end()
