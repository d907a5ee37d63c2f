"""The requests in hand of a loaded model: admission, preparation thread, engine thread, answers."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from worker.engine.answer import Answer, AnswerStream
from worker.engine.base import EngineBusy
from worker.engine.gathering import Gathering
from worker.engine.host import Loaded
from worker.engine.limits import Limits
from worker.engine.output import EngineFailed, EngineLoad, MemoryShort, PromptError, PromptStuck
from worker.engine.preparation import Preparation
from worker.engine.prompt import PromptReader, ReadPrompt
from worker.engine.sequence import Events, Guide, Sequence
from worker.engine.settings import RequestSettings
from worker.engine.shape import Shape
from worker.engine.stats import Totals

logger = logging.getLogger(__name__)

T = TypeVar("T")

Encode = Callable[[PromptReader], ReadPrompt]
"""Makes the prompt's ids, on the preparation thread."""


class _Prompt(NamedTuple):
    """A prompt made ready."""

    ids: list[int]
    pictures: tuple[Any, ...]
    in_reasoning: bool
    """It ends where the model has begun to reason."""
    guide: Guide | None
    """Where its answer has to follow a grammar."""


class Serving:
    """Owns the answers in hand, from `start` to `stop`, and the preparation thread.

    Event loop only, but for `step` and `fault`, which are the engine thread's.
    """

    def __init__(self, loaded: Loaded, limits: Limits) -> None:
        """Sets the model's thread to work."""
        self._model = loaded.model
        self._stepper = loaded.stepper
        self._guard = loaded.guard
        self._thread = loaded.thread
        self._limits = limits
        self.totals = Totals()
        self._loop = asyncio.get_running_loop()
        self._preparation = Preparation()
        self._answers: dict[str, Answer] = {}
        self._sequences: dict[str, Sequence] = {}
        self._gathering = Gathering(self._begin, limits.max_num_seqs)
        self._last_step = 0.0
        self._failure: EngineFailed | None = None
        self._thread.drive(self.step)

    @property
    def failed(self) -> bool:
        """Nothing but a new process helps."""
        return self._failure is not None

    def admit(
        self,
        encode: Encode,
        prompt_bytes: int,
        settings: RequestSettings,
        request_id: str | None,
        picture_bytes: int = 0,
    ) -> AnswerStream:
        """Take a place now, or raise `EngineBusy`; the prompt is made ready meanwhile.

        How many tokens `picture_bytes` come to is known once they are decoded.
        """
        if self._failure is not None:
            raise self._failure
        request_id = request_id or uuid.uuid4().hex
        if request_id in self._answers:
            raise ValueError(f"a request of the id {request_id} is in hand already")
        self._check_ids(settings)
        self._limits.check_places(len(self._answers))
        spell = None if settings.sampling.logprobs is None else self._model.spell
        answer = Answer(request_id, self._model.make_detokenizer(), settings.stop, spell)
        answer.reserved = self._limits.estimate(prompt_bytes, settings.max_tokens)
        self._limits.check_kv(answer.reserved, self._reserved())
        if self._answers:
            self._guard.check()
        else:
            self._last_step = time.monotonic()
        self._answers[request_id] = answer
        self._preparation.submit(
            partial(self._prompt, encode, settings.shape),
            prompt_bytes + picture_bytes,
            partial(self._prepared, answer, settings),
            partial(self._stuck, answer),
        )
        return AnswerStream(answer, self.release)

    async def read(self, work: Callable[[PromptReader], T], size: int) -> T:
        """What `work` makes of `size` bytes on the preparation thread, where prompts are read."""
        if self._failure is not None:
            raise self._failure
        result: asyncio.Future[T] = self._loop.create_future()

        def done(future: Future[T]) -> None:
            if result.done():
                return  # nobody waits any more
            if (error := future.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(future.result())

        def late(limit_s: float) -> None:
            self._stop_reading(limit_s)
            if not result.done():
                result.set_exception(_stuck(limit_s))

        self._preparation.submit(partial(work, self._model.reader), size, done, late)
        return await result

    def abort(self, request_id: str, error: Exception) -> bool:
        """End that request; its reader gets `error`. False when there is none of that id."""
        answer = self._answers.get(request_id)
        if answer is None:
            return False
        answer.fail(error)
        self.release(answer)
        return True

    def abort_all(self, error: Exception) -> None:
        for request_id in tuple(self._answers):
            self.abort(request_id, error)

    def close(self, error: Exception) -> None:
        """End every request with `error`, and take no more."""
        self.abort_all(error)
        self._preparation.close()

    def release(self, answer: Answer) -> None:
        """Give its place back, and end it in the engine if it is still there."""
        if self._answers.get(answer.request_id) is not answer:
            return
        del self._answers[answer.request_id]
        sequence = self._sequences.pop(answer.request_id, None)
        if sequence is not None and not self._gathering.remove(sequence):
            self._thread.post(lambda: self._stepper.remove(sequence))

    def load(self) -> EngineLoad:
        running = min(self._stepper.running, len(self._answers))
        idle_s = time.monotonic() - self._last_step if self._answers else 0.0
        return EngineLoad(
            running=running,
            waiting=len(self._answers) - running,
            prefill_tokens=self._stepper.prefill_tokens if self._answers else 0,
            kv_tokens=self._reserved(),
            decode_tokens_per_s=self._stepper.decode_rate.value,
            prefill_tokens_per_s=self._stepper.prefill_rate.value,
            step_age_s=max(idle_s, self._thread.busy_s),  # a step goes on when its requests have left
        )

    def step(self) -> bool:
        """One step of the batch, and one call to the event loop for all that it brought."""
        events = self._stepper.step()
        self._last_step = time.monotonic()
        if events and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)
        alone = self._stepper.make_room() if self._guard.look() else None
        if alone is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._shed, alone)
        return self._stepper.has_work

    def fault(self, error: Exception) -> None:
        """A fault outside of a step's own: nothing is known about the state of the batch any more."""
        self._failure = EngineFailed(f"the engine thread met a fault: {error}")
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.abort_all, self._failure)

    def _shed(self, sequence: Sequence) -> None:
        """End a request for which there is no memory even alone."""
        if self._sequences.get(sequence.request_id) is sequence:
            words = f"{self._guard.words()} by this request alone; shorter ones may fit"
            logger.error("request %s: %s", sequence.request_id, words)
            self.totals.ended_for_memory += 1
            self.abort(sequence.request_id, MemoryShort(words))

    def _check_ids(self, settings: RequestSettings) -> None:
        """An id that the model does not have would be read from beyond its logits."""
        reader, sampling = self._model.reader, settings.sampling
        reader.check([token for token, _bias in sampling.logit_bias], "logit_bias", param="logit_bias")
        reader.check(list(settings.stop_token_ids), "stop_token_ids", param="stop_token_ids")

    def _reserved(self) -> int:
        return sum(answer.held for answer in self._answers.values())

    def _prompt(self, encode: Encode, shape: Shape | None) -> _Prompt:
        ids, pictures = encode(self._model.reader)
        syntax = self._model.facts.syntax
        in_reasoning = self._model.reader.ends_in_reasoning(ids, syntax.opens_reasoning)
        if shape is None:
            return _Prompt(ids, pictures, in_reasoning, None)
        guide = self._model.grammars.guide(shape, shape.syntax(syntax), in_reasoning=in_reasoning)
        return _Prompt(ids, pictures, in_reasoning, guide)

    def _stuck(self, answer: Answer, limit_s: float) -> None:
        logger.error("request %s: its prompt was not ready within %.0f s", answer.request_id, limit_s)
        self.abort(answer.request_id, _stuck(limit_s))
        self._stop_reading(limit_s)

    def _stop_reading(self, limit_s: float) -> None:
        """The thread cannot be ended, so that no other prompt gets ready."""
        self._failure = EngineFailed(
            f"a prompt was not ready within {limit_s:.0f} s; only a new process helps"
        )
        self.abort_all(self._failure)

    def _prepared(self, answer: Answer, settings: RequestSettings, future: Future[_Prompt]) -> None:
        if self._answers.get(answer.request_id) is not answer:
            return  # closed meanwhile
        try:
            sequence = self._sequence(answer, settings, future.result())
        except (PromptError, EngineBusy) as error:
            answer.fail(error)
        except Exception as error:
            logger.exception("request %s: its prompt could not be prepared", answer.request_id)
            answer.fail(error)
        else:
            self._hand_over(answer, sequence)
        if answer.ended:
            self.release(answer)

    def _sequence(self, answer: Answer, settings: RequestSettings, ready: _Prompt) -> Sequence:
        prompt = ready.ids
        answer.in_reasoning = ready.in_reasoning
        facts, resumed = self._model.facts, list(settings.resume_token_ids)
        if resumed:
            answer.replay(self._model.reader.checked(resumed, "earlier answer"))
        max_tokens = self._limits.fit(len(prompt), settings.max_tokens, facts.max_model_len)
        promise = self._limits.promise(len(prompt), max_tokens, len(resumed))
        self._limits.check_kv(promise, self._reserved() - answer.held)
        if settings.echo and not resumed:
            answer.echo(self._model.tokenizer.decode(prompt), prompt)
        answer.prompt_tokens = len(prompt)
        answer.reserved = promise
        sampling, eos = settings.sampling, facts.eos_token_ids
        if settings.ignore_eos and ready.guide is None:
            eos = ()
        elif settings.ignore_eos:
            sampling = replace(sampling, min_tokens=max_tokens)  # it ends when its grammar does
        return Sequence(
            request_id=answer.request_id,
            prompt=prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            stop_ids=settings.stop_token_ids.union(eos),
            deliver=lambda event: answer.take(event, settings.stop_token_ids),
            emitted=resumed,
            guide=ready.guide,
            pictures=ready.pictures,
            score_prompt=settings.echo and settings.sampling.logprobs is not None and not resumed,
        )

    def _hand_over(self, answer: Answer, sequence: Sequence) -> None:
        if not answer.ended and sequence.emitted and sequence.emitted[-1] in sequence.stop_ids:
            answer.finish("stop")
        elif not answer.ended and not sequence.score_prompt and len(sequence.emitted) >= sequence.max_tokens:
            answer.finish("length")
        if not answer.ended:
            self.totals.prompt_tokens += len(sequence.prompt)
            idle = len(self._sequences) == len(self._gathering)
            self._sequences[answer.request_id] = sequence
            self._gathering.add(sequence, self._stepper.prefill_rate.value, idle=idle)

    def _begin(self, sequences: list[Sequence]) -> None:
        def add() -> None:
            for sequence in sequences:
                self._stepper.add(sequence)

        self._thread.post(add)

    def _deliver(self, events: Events) -> None:
        for sequence, event in events:
            sequence.deliver(event)
            self.totals.count(event)
            if isinstance(event.error, EngineFailed):
                self._failure = event.error
            answer = self._answers.get(sequence.request_id)
            if answer is not None and answer.ended:
                self.release(answer)


def _stuck(limit_s: float) -> PromptStuck:
    return PromptStuck(
        f"a prompt was not ready within {limit_s:.0f} s: the model's chat template does not end with this"
        " conversation"
    )
