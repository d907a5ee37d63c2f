"""The life of requests in a worker: admitted, run by the engine, told of, ended. No sockets here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from protocol.errors import WORKER_DIED, ErrorCode
from protocol.messages import (
    Accepted,
    Delta,
    Embed,
    Failed,
    Finished,
    Generate,
    Message,
    Result,
    Score,
    Work,
)
from protocol.traces import Spans
from protocol.values import Capacity, Load, Task
from worker import traces
from worker.admission import Admission, NoPlace, estimated_tokens
from worker.answer import Answer
from worker.ends import failed, prompt_failed, rejected
from worker.engine.base import BaseEngine, EngineBusy, GenerationOutput
from worker.engine.limits import AHEAD
from worker.engine.output import EngineFacts, EngineFailed, EngineLoad, FleetEngine, PromptError, PromptStuck
from worker.held import End, Held, Key
from worker.items import checked
from worker.outbox import TurnOutbox
from worker.parsers.base import Syntax
from worker.request import (
    chat_messages,
    chat_tools,
    engine_arguments,
    images,
    misplaced,
    prompt_bytes,
    room,
    unsupported,
)
from worker.whole import Computed, Whole, computed

logger = logging.getLogger(__name__)

CLOSE_S = 10.0
"""An engine may take so long to close a stream; after that its place is given to others."""

Send = Callable[[str, Message], None]


class Core:
    """Owns the requests in hand, one task each; lives on the event loop.

    `send` takes what is to be said to a gateway, `freed` is called when places came free without
    a message that says so, `over` whenever a request is, `broken` when the engine is beyond help.
    """

    def __init__(
        self,
        engine: BaseEngine,
        capacity: Capacity,
        send: Send,
        *,
        freed: Callable[[], None],
        over: Callable[[], None] = lambda: None,
        broken: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._fleet = isinstance(engine, FleetEngine)
        self._admission = Admission(capacity)
        self._send = send
        self._freed = freed
        self._over = over
        self._broken = broken
        self._held: dict[Key, Held] = {}
        self._outboxes: dict[str, TurnOutbox] = {}
        self._flush_due = False
        self.closed: str | None = "engine_busy"
        """Why nothing new is taken (a reason of `Rejected`); None while requests are taken."""
        self.max_model_len: int | None = None
        self._syntax = Syntax()
        self.traces: Spans | None = None
        self._task = Task.GENERATE

    @property
    def held(self) -> int:
        return len(self._held)

    def learn(self, facts: EngineFacts) -> None:
        """What is known of the model once it is loaded."""
        self.max_model_len = facts.max_model_len
        self._syntax = facts.syntax
        self._task = facts.task
        if facts.syntax.has_tools:
            self._engine.preserve_native_tool_format = True

    def generate(self, gateway: str, request: Generate, parts: Sequence[bytes] = ()) -> None:
        """Take the request or reject it, at once; the rest happens in its own task.

        `parts`: the pictures that its messages name.
        """
        now = asyncio.get_running_loop().time()
        self._open(gateway, request, Answer(request, now, self._syntax), parts)

    def compute(self, gateway: str, request: Computed) -> None:
        """The same of one that is answered in one piece."""
        self._open(gateway, request, Whole(request, asyncio.get_running_loop().time()))

    def _open(self, gateway: str, request: Work, answer: Answer | Whole, parts: Sequence[bytes] = ()) -> None:
        loop = asyncio.get_running_loop()
        key = Key(gateway, request.request_id, request.attempt)
        if key in self._held:
            logger.debug("request %s: attempt %s came twice", request.request_id, request.attempt)
            return
        if self.closed is not None:
            self._say(gateway, self._with_load(rejected(request, self.closed, 1.0)))
            return
        problem = self._problem(request, parts)
        if problem is not None:
            field, words = problem
            refused = replace(failed(request, ErrorCode.UNSUPPORTED, words), param=field)
            self._say(gateway, self._with_load(refused))
            return
        try:
            tokens = estimated_tokens(prompt_bytes(request))
            answer_tokens = room(request, self.max_model_len)
            if self._can("preempt"):
                answer_tokens = min(answer_tokens, AHEAD)
            self._admission.admit(key, tokens, answer_tokens, self._engine_load(), loop.time())
        except NoPlace as busy:
            self._say(gateway, self._with_load(rejected(request, "engine_busy", busy.retry_after_s)))
            return
        held = Held(key, request, answer, seen_at=loop.time(), parts=parts)
        self._held[key] = held
        self._say(gateway, Accepted(request_id=key.request_id, attempt=key.attempt, load=self.load()))
        held.task = loop.create_task(self._run(held))
        held.task.add_done_callback(lambda task: self._ended(held, task))
        logger.debug("request %s: attempt %s accepted from %s", key.request_id, key.attempt, gateway)

    def abort(self, gateway: str, request_id: str) -> None:
        """End the request, whatever its phase, and say nothing. Unknown ids are ignored."""
        for held in self._of(gateway):
            if held.key.request_id == request_id:
                self._cancel(held, None)

    def abandon(self, why: str, gateway: str | None = None, *, died: bool = False) -> None:
        """End all requests (of one gateway) as lost, so that they go on elsewhere.

        `died`: the engine ended with them, and perhaps because of one.
        """
        reason = WORKER_DIED if died else None
        for held in tuple(self._held.values()):
            if gateway is None or held.key.gateway == gateway:
                logger.warning("request %s: given up: %s", held.key.request_id, why)
                message = f"the worker gave the request up: {why}"
                lost = failed(held.request, ErrorCode.WORKER_LOST, message)
                self._cancel(held, replace(lost, reason=reason))

    async def ended(self) -> None:
        """Wait until nothing is in hand."""
        while tasks := [held.task for held in self._held.values() if held.task is not None]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)

    def load(self) -> Load:
        return self._admission.load(self._engine_load() if self._fleet else None)

    def step_age_s(self) -> float:
        """How long nothing came out of the engine although something is pending.

        What a foreign engine does before an answer's first item nobody sees: it may read a long prompt.
        """
        if isinstance(self._engine, FleetEngine):
            return self._engine.load().step_age_s
        if not all(held.answer.started for held in self._held.values()):
            return 0.0
        now = asyncio.get_running_loop().time()
        return min((now - held.seen_at for held in self._held.values()), default=0.0)

    def flush(self) -> None:
        """Hand over what this turn brought."""
        self._flush_due = False
        for gateway, outbox in self._outboxes.items():
            for message in outbox.take():
                self._send(gateway, message)

    def _problem(self, request: Work, parts: Sequence[bytes]) -> tuple[str, str] | None:
        """The field of what cannot be done here, and words about it."""
        if not isinstance(request, Generate) or self._task is not Task.GENERATE:
            return misplaced(request, self._task)
        return unsupported(
            request,
            tools=self._uses_tools(),
            ids=self._fleet,
            logprobs=self._can("logprobs"),
            shapes=self._can("structure"),
            frames=len(parts) if self._engine.is_mllm else None,
        )

    # --- one request ---

    async def _run(self, held: Held) -> End:
        scope = asyncio.timeout(held.request.time_left_s)
        try:
            async with scope:
                return await self._answered(held)
        except BaseException as error:
            # An engine may raise anything, its exit or a cancellation too; it concerns this request.
            if held.aborted:
                raise asyncio.CancelledError from error
            if isinstance(error, TimeoutError) and scope.expired():
                late = "the time for the answer is over"
                return failed(held.request, ErrorCode.DEADLINE_EXCEEDED, late)
            return self._end_after(held, error)

    def _end_after(self, held: Held, error: BaseException) -> End:
        if isinstance(error, EngineBusy) and not held.answer.started:
            return rejected(held.request, "engine_busy", getattr(error, "retry_after_s", 1.0))
        if isinstance(error, PromptError):
            return prompt_failed(held.request, error)
        if isinstance(error, EngineFailed):
            self._broken(str(error))
            if isinstance(error, PromptStuck):
                return failed(held.request, ErrorCode.INVALID_REQUEST, str(error))
            lost = failed(held.request, ErrorCode.WORKER_LOST, f"the worker's engine failed: {error}")
            return replace(lost, reason=WORKER_DIED)
        return self._engine_fault(held, error)

    async def _answered(self, held: Held) -> Finished:
        match held.request, held.answer:
            case Generate() as request, Answer() as answer:
                return await self._consume(held, request, answer)
            case Embed() | Score() as request, Whole() as answer:
                return await self._compute(held, request, answer)
        raise TypeError(f"a {type(held.request).__name__} cannot be answered so")

    async def _compute(self, held: Held, request: Computed, answer: Whole) -> Finished:
        """The one result of a request that has no stream."""
        loop = asyncio.get_running_loop()

        def began(tokens: int) -> None:
            self._admission.started(held.key, tokens)
            self._say(held.key.gateway, answer.start(tokens, loop.time()))

        value = await computed(self._engine, request, self._engine_id(held.key), began)
        result = Result(request_id=request.request_id, attempt=request.attempt, value=value)
        self._say(held.key.gateway, result)
        return answer.end(loop.time())

    async def _consume(self, held: Held, request: Generate, answer: Answer) -> Finished:
        """Everything from the call of the engine to the end of its answer."""
        stream = self._call(held, request)
        loop = asyncio.get_running_loop()
        try:
            async for output in stream:
                if held.aborted:
                    raise asyncio.CancelledError  # the engine took no notice of it
                held.seen_at = loop.time()
                self._take(held, answer, checked(output))
                if answer.finished is not None:
                    return answer.finished
                if not self._fleet:
                    await asyncio.sleep(0)  # it may have its items ready, and would hold up the loop
        finally:
            await _close(stream, held.key.request_id)
        raise RuntimeError("the engine's stream ended without a finished item")

    def _call(self, held: Held, request: Generate) -> AsyncIterator[GenerationOutput]:
        arguments = engine_arguments(
            request, self._engine_id(held.key), self.max_model_len, can_resume=self._can("resume")
        )
        if request.prompt is not None:
            # Only our own engines take a prompt of ids; for others it was refused.
            prompt: Any = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
            return self._engine.stream_generate(prompt, **arguments)
        if held.parts:
            arguments["images"] = images(request, held.parts)
        return self._engine.stream_chat(chat_messages(request), tools=chat_tools(request), **arguments)

    def _take(self, held: Held, answer: Answer, output: GenerationOutput) -> None:
        if not answer.started:
            self._admission.started(held.key, output.prompt_tokens)
            self._say(held.key.gateway, answer.start(output, held.seen_at))
        for delta in answer.feed(output, held.seen_at):
            self._say(held.key.gateway, delta)

    def _ended(self, held: Held, task: asyncio.Task[End]) -> None:
        """The task is over, or was cancelled before it began: the place is free, and that is said."""
        del self._held[held.key]
        if held.insisting is not None:
            held.insisting.cancel()
        loop = asyncio.get_running_loop()
        self._admission.release(held.key, loop.time())
        self._over()
        message: End | None
        if task.cancelled():
            message = held.verdict
        elif (error := task.exception()) is not None:
            logger.error("request %s: a fault of the worker", held.key.request_id, exc_info=error)
            message = failed(held.request, ErrorCode.INTERNAL_ERROR, "the worker met a fault")
        else:
            message = task.result()
        if self.traces is not None:
            now = loop.time()
            spans = traces.made(held.request, held.answer, message, now)
            self.traces.take(span.shifted(time.time() - now) for span in spans)
        if message is None:
            logger.debug("request %s: aborted", held.key.request_id)
            self._freed()
        else:
            self._say(held.key.gateway, self._with_load(message))

    def _engine_fault(self, held: Held, error: BaseException) -> Failed:
        what = f"{type(error).__name__}: {error}"
        logger.error("request %s: the engine failed: %s", held.key.request_id, what)
        return failed(held.request, ErrorCode.ENGINE_FAILED, f"the engine failed: {what}")

    # --- small things ---

    def _cancel(self, held: Held, verdict: Failed | None) -> None:
        """Once: a second cancel would break into the closing of the stream, so that has its time first."""
        if held.task is not None and not held.aborted:
            held.aborted = True
            held.verdict = verdict
            self._insist(held, held.task)

    def _insist(self, held: Held, task: asyncio.Task[End]) -> None:
        task.cancel()
        held.insisting = asyncio.get_running_loop().call_later(CLOSE_S, self._insist, held, task)

    def _of(self, gateway: str) -> list[Held]:
        return [held for held in self._held.values() if held.key.gateway == gateway]

    def _engine_id(self, key: Key) -> str:
        """The request's id; longer where another one of that id is still in hand."""
        if sum(other.request_id == key.request_id for other in self._held) == 1:
            return key.request_id
        return f"{key.request_id}/{key.gateway}/{key.attempt}"

    def _can(self, what: str) -> bool:
        """Whether the engine's class says so."""
        return bool(getattr(type(self._engine), f"can_{what}", False))

    def _uses_tools(self) -> bool:
        return not isinstance(self._engine, FleetEngine) or self._syntax.has_tools

    def _engine_load(self) -> EngineLoad:
        return self._engine.load() if isinstance(self._engine, FleetEngine) else EngineLoad()

    def _with_load(self, message: End) -> End:
        return replace(message, load=self.load())

    def _say(self, gateway: str, message: Message | Delta) -> None:
        self._outboxes.setdefault(gateway, TurnOutbox()).add(message)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)


async def _close(stream: Any, request_id: str) -> None:
    close = getattr(stream, "aclose", None)
    if close is None:
        return
    try:
        async with asyncio.timeout(CLOSE_S):
            await close()
    except Exception:
        logger.exception("request %s: the engine's stream could not be closed", request_id)
