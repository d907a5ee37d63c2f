"""The fake engine: deterministic answers at set speeds, and faults on request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from protocol.messages import Embed, Score
from protocol.values import Count, Measure, NotNegative, Scores, Task, Vectors
from worker.engine import fake_vectors
from worker.engine.base import BaseEngine
from worker.engine.fake_core import FakeCore, FakeRequest, Speed
from worker.engine.fake_script import (
    Script,
    WordTokenizer,
    answer_of,
    chat_script,
    read_script,
    render_chat,
    with_pictures_told,
    words,
)
from worker.engine.fake_stream import FakeStream
from worker.engine.limits import check_length
from worker.engine.output import (
    EngineFacts,
    EngineLoad,
    EngineOutput,
    PromptError,
    StopRequested,
    Tokens,
    whole,
)
from worker.engine.shape import Shape, shape_of
from worker.engine.syntax import THINK, configured
from worker.parsers.base import marked
from worker.parsers.json_calls import TOOL_CALL, read_json_calls
from worker.stops import StopMatcher

LOAD_SLICE_S = 0.05


class FakeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_options` of a fake worker. Rates of 0 mean at once."""

    max_num_seqs: Count = 8
    max_waiting: NotNegative = 0
    max_model_len: Count | None = None
    prefill_tokens_per_s: Measure = 0.0
    decode_tokens_per_s: Measure = 0.0
    load_s: Measure = 0.0
    weights_mb: NotNegative = 0
    """What it is said to take in memory; nothing is taken."""
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    sees: bool = False
    """It takes pictures, and reads of each what it is: a model would see what it shows."""
    task: Task = Task.GENERATE
    """With `embed` and `rerank`, vectors and scores are made up of words."""
    dimensions: Count = 64
    start_log: str | None = None
    """A file that gets a line `request_id attempt` whenever work on a request of such an id starts."""


class FakeEngine(BaseEngine):
    """Owns the stepping core and the timer that drives it; lives on the event loop."""

    can_resume = True
    can_logprobs = True
    can_preempt = False
    can_structure = True

    def __init__(self, model: str, **options: Any) -> None:
        """Raises `ValueError` for options that it does not have."""
        try:
            self._options = msgspec.convert(options, FakeOptions)
        except msgspec.ValidationError as error:
            raise ValueError(f"options of the fake engine: {error}") from error
        self._syntax = configured(
            marked(THINK, TOOL_CALL, read_json_calls),
            self._options.tool_parser,
            self._options.reasoning_parser,
        )
        self._model = model
        self._tokenizer = WordTokenizer()
        self._core = FakeCore(
            self._options.max_num_seqs,
            self._options.max_waiting,
            Speed(self._options.prefill_tokens_per_s, self._options.decode_tokens_per_s),
            self._tokenizer,
            self._log_start,
        )
        self._loaded_s = 0.0
        self._load_stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Handle | None = None

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def is_mllm(self) -> bool:
        return self._options.sees

    @property
    def tokenizer(self) -> WordTokenizer:
        return self._tokenizer

    def inspect(self) -> int:
        return self._options.weights_mb

    def prepare_for_start(self) -> None:
        while self._loaded_s < self._options.load_s:
            if self._load_stop.is_set():
                raise StopRequested("asked to stop while loading")
            time.sleep(min(LOAD_SLICE_S, self._options.load_s - self._loaded_s))
            self._loaded_s += LOAD_SLICE_S

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        self._loop = None
        self._loaded_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for request in tuple(self._core.requests()):
            self._core.remove(request)
            request.emit(RuntimeError("the engine was stopped"))

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
        text = prompt if isinstance(prompt, str) else self._tokenizer.text_of(prompt)
        script = self._shaped(read_script(text), shape_of(kwargs, None))
        return self._admit(text, script, max_tokens, stop, kwargs, self._options.max_model_len)

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
        if videos or (images and not self._options.sees):
            raise PromptError("the fake engine takes no images and no videos", "template")
        told = with_pictures_told(messages, images or ())
        stop = kwargs.pop("stop", None)
        options = kwargs.pop("chat_template_kwargs", None)
        prompt = render_chat(told, tools, options, native_tools=self.preserve_native_tool_format)
        mark = self._syntax.opens_reasoning
        kwargs["in_reasoning"] = mark is not None and prompt.rstrip().endswith(mark)
        script = self._shaped(chat_script(messages), shape_of(kwargs, tools or ()), kwargs["in_reasoning"])
        return self._admit(prompt, script, max_tokens, stop, kwargs, self._options.max_model_len)

    def get_stats(self) -> dict[str, Any]:
        load = self.load()
        return {"engine": "fake", "running": load.running, "waiting": load.waiting}

    async def tokenize(self, text: str, *, special: bool, pieces: bool) -> Tokens:
        return self._tokens(text, self._tokenizer.encode(text), pieces)

    async def tokenize_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        options: dict[str, Any],
        *,
        pieces: bool,
    ) -> Tokens:
        text = render_chat(messages, tools, options, native_tools=self.preserve_native_tool_format)
        return self._tokens(text, self._tokenizer.encode(text), pieces)

    async def detokenize(self, token_ids: list[int], *, pieces: bool) -> Tokens:
        return self._tokens(self._tokenizer.text_of(token_ids), token_ids, pieces)

    def _tokens(self, text: str, ids: list[int], pieces: bool) -> Tokens:
        return Tokens(text, ids, [self._tokenizer.decode([each]) for each in ids] if pieces else [])

    async def embed(self, request: Embed, request_id: str, began: Callable[[int], None]) -> Vectors:
        texts = request.inputs or [self._tokenizer.text_of(ids) for ids in request.token_ids]
        native = self._options.dimensions
        if (request.dimensions or 0) > native:
            why = f"dimensions is {request.dimensions}, but this model's vectors have {native}; ask for fewer"
            raise PromptError(why, "unsupported", param="dimensions")
        for index, text in enumerate(texts):
            check_length(len(words(text)), self._options.max_model_len, f"input[{index}]")
        await self._pretend(texts, request, request_id, began)
        data = b"".join([fake_vectors.vector(text, native, request.dimensions) for text in texts])
        return Vectors(dimensions=request.dimensions or native, data=data)

    async def score(self, request: Score, request_id: str, began: Callable[[int], None]) -> Scores:
        queries = request.queries * (len(request.texts) if len(request.queries) == 1 else 1)
        await self._pretend((*queries, *request.texts), request, request_id, began)
        pairs = zip(queries, request.texts, strict=True)
        return Scores(scores=tuple(fake_vectors.score(query, text) for query, text in pairs))

    async def _pretend(
        self, texts: Sequence[str], request: Embed | Score, request_id: str, began: Callable[[int], None]
    ) -> None:
        """Take the place and the time of one request with all these texts, and the faults of the first."""
        kwargs = {"request_id": request_id, "attempt": request.attempt}
        stream = self._admit("\n".join(texts), read_script(texts[0]), 1, None, kwargs)
        try:
            async for item in stream:
                if not item.tokens and not item.finished:
                    began(item.prompt_tokens)
        finally:
            await stream.aclose()

    async def abort_request(self, request_id: str) -> bool:
        ended = [r for r in self._core.requests() if request_id and r.request_id == request_id]
        for request in ended:
            self._core.remove(request)
            request.emit(RuntimeError("the request was aborted"))
        return bool(ended)

    def facts(self) -> EngineFacts:
        return EngineFacts(
            max_model_len=self._options.max_model_len,
            fingerprint=f"fake:{self._model}",
            syntax=self._syntax,
            task=self._options.task,
        )

    def load(self) -> EngineLoad:
        return self._core.load(self._now())

    def load_progress(self) -> tuple[float, str]:
        if not self._options.load_s:
            return 1.0, "nothing to load"
        return min(1.0, self._loaded_s / self._options.load_s), "pretending to read weights"

    def request_stop(self) -> None:
        self._load_stop.set()

    def _shaped(self, script: Script, shape: Shape | None, in_reasoning: bool = False) -> Script:
        """With a short text of the shape, where it says nothing itself. Raises `PromptError`."""
        if shape is None:
            return script
        try:
            from worker.engine.fake_shapes import short_text  # noqa: PLC0415 (only the worker's extra has it)
        except ImportError as error:
            missing = f"answers of a given form need {error.name}, which is not installed here"
            cure = f"{missing}; run: scripts/install"
            raise PromptError(cure, "unsupported", param=shape.field) from error
        text = short_text(shape, self._syntax, in_reasoning=in_reasoning)
        return script if script.says_something else msgspec.structs.replace(script, tokens=tuple(words(text)))

    def _admit(
        self,
        prompt: str,
        script: Script,
        max_tokens: int,
        stop: list[str] | None,
        kwargs: dict[str, Any],
        limit: int | None = None,
    ) -> FakeStream:
        """`limit`: tokens of the prompt and its answer together."""
        if self._loop is None:
            raise RuntimeError("the engine is not started")
        prompt_tokens = len(self._tokenizer.encode(prompt))
        if limit is not None and prompt_tokens >= limit:
            raise PromptError(
                f"prompt is too long: {prompt_tokens} tokens > {limit} maximum"
                f" (this model's maximum context length is {limit} tokens); shorten the prompt",
                "context_length_exceeded",
            )
        stream = FakeStream(self._core)
        stream.request = FakeRequest(
            request_id=kwargs.get("request_id", ""),
            attempt=kwargs.get("attempt", 0),
            script=script,
            answer=answer_of(script, prompt, kwargs.get("ignore_eos", False)),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens if limit is None else min(max_tokens, limit - prompt_tokens),
            matcher=StopMatcher(stop or ()),
            emit=stream.mailbox.put,
            resumed=len(kwargs.get("resume_token_ids", ())),
            in_reasoning=kwargs.get("in_reasoning", False),
            logprobs=kwargs.get("logprobs"),
            echo=prompt if kwargs.get("echo") else None,
        )
        self._core.add(stream.request, self._now())
        self._schedule()
        return stream

    def _now(self) -> float:
        return time.monotonic() if self._loop is None else self._loop.time()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._core.next_due()
        if due is None or self._loop is None:
            return
        late = due <= self._loop.time()
        self._timer = self._loop.call_soon(self._step) if late else self._loop.call_at(due, self._step)

    def _step(self) -> None:
        self._core.step(self._now())
        self._schedule()

    def _log_start(self, request: FakeRequest) -> None:
        if self._options.start_log is not None and request.request_id:
            with Path(self._options.start_log).open("a", encoding="utf-8") as log:
                log.write(f"{request.request_id} {request.attempt}\n")
