"""The stepping heart of the fake engine: slots, waiting room, simulated speed, scripted faults.

Pure but for what a script asks for: the clock is handed in, and so are the faults' effects.
"""

from __future__ import annotations

import codecs
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from worker.engine.base import EngineBusy
from worker.engine.fake_script import Answer, Script, WordTokenizer, made_up_logprob, words
from worker.engine.output import EngineFailed, EngineLoad, EngineOutput
from worker.stops import StopMatcher

Item = EngineOutput | Exception
_LEAST_INTERVAL_S = 1e-6
"""What is shorter means at once."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second; 0 means at once."""

    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True)
class Effects:
    """What faults do to the process."""

    block: Callable[[float], None] = time.sleep
    exit: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)


@dataclass(eq=False)
class FakeRequest:
    """One request from its admission to its last item."""

    request_id: str
    attempt: int
    script: Script
    answer: Answer
    prompt_tokens: int
    max_tokens: int
    matcher: StopMatcher
    emit: Callable[[Item], None]
    resumed: int = 0
    logprobs: int | None = None
    """How many alternatives to make up with each token; None: no log-probabilities."""
    echo: str | None = None
    """The prompt, where it is to be given back."""
    in_reasoning: bool = False
    position: int = 0
    text: str = ""
    due: float = 0.0
    prefill_begin: float = 0.0
    prefill_end: float = 0.0
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def fault_at(self, position: int | None) -> bool:
        return self.faulty and position == self.position

    @property
    def faulty(self) -> bool:
        return self.attempt == 0 or not self.script.once

    def prefill_left(self, now: float) -> float:
        """How many tokens of the prompt are still to be computed."""
        if now >= self.prefill_end:
            return 0.0
        share = (self.prefill_end - now) / (self.prefill_end - self.prefill_begin)
        return self.prompt_tokens * min(1.0, share)


class FakeCore:
    """Owns the requests in hand; steps all that are due together."""

    def __init__(
        self,
        slots: int,
        room: int,
        speed: Speed,
        tokenizer: WordTokenizer,
        started: Callable[[FakeRequest], None],
        effects: Effects | None = None,
    ) -> None:
        self._slots = slots
        self._room = room
        self._speed = speed
        self._tokenizer = tokenizer
        self._started = started
        self._effects = effects or Effects()
        self._waiting: deque[FakeRequest] = deque()
        self._running: list[FakeRequest] = []
        self._hung_since: float | None = None

    def add(self, request: FakeRequest, now: float) -> None:
        """Take the request. Raises `EngineBusy`."""
        if request.script.busy and request.faulty:
            raise EngineBusy("the script says that the engine is busy")
        if len(self._waiting) + len(self._running) >= self._slots + self._room:
            raise EngineBusy(f"all {self._slots} slots and {self._room} waiting places are taken")
        request.due = now
        self._waiting.append(request)

    def remove(self, request: FakeRequest) -> bool:
        """Forget the request. False when it is not in hand (any more)."""
        for held in (self._running, self._waiting):
            if request in held:
                held.remove(request)
                return True
        return False

    def requests(self) -> Iterator[FakeRequest]:
        yield from (*self._running, *self._waiting)

    def next_due(self) -> float | None:
        """When to step next; None while there is nothing to do."""
        if self._hung_since is not None:
            return None
        if self._waiting and len(self._running) < self._slots:
            return self._waiting[0].due
        return min((request.due for request in self._running), default=None)

    def step(self, now: float) -> None:
        """Start what has a slot, then produce one token of each request that is due."""
        while self._waiting and len(self._running) < self._slots and self._hung_since is None:
            self._start(self._waiting.popleft(), now)
        for request in tuple(self._running):
            if self._hung_since is not None:
                return
            if request.due <= now:
                self._advance(request, now)

    def load(self, now: float) -> EngineLoad:
        stepping = self._running or self._waiting
        due = min((request.due for request in stepping), default=now)
        if self._hung_since is not None:
            due = self._hung_since  # whether or not its requests are still there
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            prefill_tokens=round(sum(request.prefill_left(now) for request in self._running)),
            kv_tokens=sum(request.prompt_tokens + request.position for request in self._running),
            decode_tokens_per_s=self._speed.decode,
            prefill_tokens_per_s=self._speed.prefill,
            step_age_s=max(0.0, now - due),
        )

    def _start(self, request: FakeRequest, now: float) -> None:
        self._running.append(request)
        self._started(request)
        request.prefill_begin = now
        request.prefill_end = request.due = now + self._prefill_seconds(request)
        self._replay(request)
        if request.script.block_ms and request.faulty:
            self._effects.block(request.script.block_ms / 1000)
        taken = EngineOutput(
            "",
            prompt_tokens=request.prompt_tokens,
            finish_reason=None,
            finished=False,
            in_reasoning=request.in_reasoning,
        )
        if request.echo is not None and not request.resumed:
            taken.text = taken.new_text = taken.echoed = request.text = request.echo
            taken.prompt_token_ids = self._tokenizer.encode(request.echo)
            if request.logprobs is not None:
                taken.prompt_logprobs = [
                    made_up_logprob(self._tokenizer, word.encode(), request.logprobs)
                    for word in words(request.echo)
                ]
        request.emit(taken)

    def _prefill_seconds(self, request: FakeRequest) -> float:
        if request.script.prefill_ms is not None:
            return request.script.prefill_ms / 1000
        return request.prompt_tokens / self._speed.prefill if self._speed.prefill else 0.0

    def _replay(self, request: FakeRequest) -> None:
        """Go through tokens emitted elsewhere, without output."""
        for position in range(min(request.resumed, len(request.answer))):
            request.text += request.matcher.feed(request.decoder.decode(request.answer.token(position)))
            request.position += 1

    def _advance(self, request: FakeRequest, now: float) -> None:
        if self._fault(request, now):
            return
        end = min(len(request.answer), request.max_tokens)
        pieces: list[bytes] = []
        new_text = ""
        if request.position < end:
            piece = request.answer.token(request.position)
            pieces.append(piece)
            new_text = request.matcher.feed(request.decoder.decode(piece))
            request.position += 1
        finished = request.position >= end or request.matcher.matched is not None
        reason = self._finish_reason(request) if finished else None
        if finished:
            self._running.remove(request)
            new_text += self._tail(request, reason)
        request.text += new_text
        request.due = self._after(request, now)
        request.emit(
            EngineOutput(
                request.text,
                [self._tokenizer.id_of(piece) for piece in pieces],
                request.prompt_tokens,
                request.position,
                reason,
                new_text=new_text,
                finished=finished,
                matched_stop=request.matcher.matched,
                logprobs=[
                    made_up_logprob(self._tokenizer, piece, request.logprobs)
                    for piece in pieces
                    if request.logprobs is not None
                ],
            )
        )

    def _finish_reason(self, request: FakeRequest) -> str:
        if request.matcher.matched is not None:
            return "stop"
        return request.script.finish if request.position >= len(request.answer) else "length"

    def _tail(self, request: FakeRequest, reason: str | None) -> str:
        """What was held back. A code point that `max_tokens` cut in two is dropped."""
        rest = "" if reason == "length" else request.decoder.decode(b"", final=True)
        return request.matcher.feed(rest) + request.matcher.flush()

    def _after(self, request: FakeRequest, now: float) -> float:
        """When the next token is due. Requests of one speed share a grid, and so their steps."""
        delay = request.script.delay_ms
        interval = (1 / self._speed.decode if self._speed.decode else 0.0) if delay is None else delay / 1000
        if interval < _LEAST_INTERVAL_S:
            return now
        tick = int(max(request.due, now) / interval + 1e-6)
        return (tick + 1) * interval

    def _break(self, error: EngineFailed) -> None:
        for request in (*self._running, *self._waiting):
            self.remove(request)
            request.emit(error)

    def _fault(self, request: FakeRequest, now: float) -> bool:
        """Do what the script asks for before this token. True when there will be no token."""
        script = request.script
        if request.fault_at(script.exit_at):
            self._effects.exit()
        if request.fault_at(script.hang_at):
            self._hung_since = now
            return True
        if request.fault_at(script.break_at):
            self._break(EngineFailed(f"the script breaks the engine before token {request.position}"))
            return True
        if request.fault_at(script.raise_at):
            self._running.remove(request)
            request.emit(RuntimeError(f"the script fails before token {request.position}"))
            return True
        return False
