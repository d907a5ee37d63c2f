"""What one process of a worker has in hand: production's admission before a fluid engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.errors import ErrorCode
from protocol.messages import Accepted, Delta, Deltas, Failed, Finished, Generate, Rejected, Started
from protocol.states import WorkerState
from protocol.values import Capacity, Load, Usage
from scripts.simulation.audit import Audit, Record
from scripts.simulation.clock import Clock
from scripts.simulation.engine import Engine, Job, Key, PrefixCache, Speed
from scripts.simulation.link import GatewaySide, Link
from scripts.simulation.traffic import TALK
from worker.admission import Admission, NoPlace
from worker.engine.output import EngineLoad


@dataclass(frozen=True)
class Make:
    """What kind of machine a worker is."""

    slots: int = 8
    waiting: int = 1
    speed: Speed = field(default_factory=Speed)
    cache: int = 8000
    """Tokens of prompts' beginnings that it keeps."""
    beat_s: float = 0.5
    """Between two heartbeats."""
    load_s: float = 3.0
    """From the start of its process until it serves."""


@dataclass(eq=False, slots=True)
class Held:
    """A job with the request and the connection that it is for."""

    job: Job
    record: Record
    link: Link
    attempt: int


class Service:
    """Owns places, engine and cache. `over` is called whenever a request is."""

    def __init__(
        self,
        name: str,
        make: Make,
        clock: Clock,
        audit: Audit,
        book: Mapping[str, Record],
        over: Callable[[], None],
    ) -> None:
        self.state = WorkerState.LOADING
        self.sick = False
        self._name, self._make, self._clock = name, make, clock
        self._audit, self._book, self._over = audit, book, over
        self._held: dict[Key, Held] = {}
        self.capacity = Capacity(max_num_seqs=make.slots, max_waiting=make.waiting)
        self._admission = Admission(self.capacity)
        self._cache = PrefixCache(make.cache)
        self.engine = Engine(
            clock,
            make.speed,
            make.slots,
            entered=self._entered,
            begun=self._begun,
            computed=self._computed,
            done=self._done,
        )

    def __len__(self) -> int:
        return len(self._held)

    def load(self) -> Load:
        return self._admission.load(self._engine_load())

    def generate(self, link: Link, message: Generate) -> None:
        key = (link.gateway.name, message.request_id, message.attempt)
        if key in self._held:
            return
        if self.state != WorkerState.READY:
            self._reject(link, message, "draining")
            return
        record = self._book[message.request_id]
        resumed, asked = len(message.resume_token_ids), record.request
        try:
            tokens = asked.prompt + resumed
            self._admission.admit(key, tokens, asked.answer, self._engine_load(), self._clock.now)
        except NoPlace:
            self._reject(link, message, "engine_busy")
            return
        job = Job(key, asked.answer, resumed=resumed, told=resumed)
        self._held[key] = Held(job, record, link, message.attempt)
        self._audit.holds(self._name, len(self._held), self._make.slots + self._make.waiting)
        self.engine.add(job)
        link.up(Accepted(request_id=message.request_id, attempt=message.attempt, load=self.load()))

    def abort(self, gateway: GatewaySide, request_id: str) -> bool:
        """Whether there was such a request. Nothing is said of it."""
        found = [h for h in self._of(gateway) if h.record.request_id == request_id]
        for held in found:
            self._drop(held)
        return bool(found)

    def forget(self, gateway: GatewaySide) -> None:
        """That gateway is gone."""
        for held in self._of(gateway):
            self._drop(held)

    def give_up(self, gateway: GatewaySide | None = None) -> None:
        """All requests (of one gateway) are to go on elsewhere."""
        for held in self._of(gateway):
            self._fail(held, ErrorCode.WORKER_LOST, "the worker gave the request up")

    def tell_all(self) -> None:
        """What came until now. Production says it at each step; here it is said before it matters."""
        for held in self._held.values():
            self._tell(held, self.engine.made(held.job))

    def _of(self, gateway: GatewaySide | None) -> list[Held]:
        return [held for held in self._held.values() if gateway is None or held.link.gateway is gateway]

    def _engine_load(self) -> EngineLoad:
        rate = self._make.speed.prefill
        return EngineLoad(prefill_tokens=self.engine.pending, prefill_tokens_per_s=rate)

    def _reject(self, link: Link, message: Generate, reason: str) -> None:
        self._audit.rejected += 1
        load = self.load()
        link.up(Rejected(request_id=message.request_id, attempt=message.attempt, load=load, reason=reason))

    # --- what the engine does ---

    def _entered(self, job: Job) -> None:
        """It got a slot."""
        record = self._held[job.key].record
        if math.isnan(record.entered_at):
            record.entered_at = self._clock.now

    def _begun(self, job: Job) -> int:
        """Its prompt is read now. Returns the tokens to compute."""
        held = self._held[job.key]
        record, asked = held.record, held.record.request
        record.cached = min(asked.shared, self._cache.find(asked.key)) if asked.key else 0
        tokens = asked.prompt + job.resumed
        self._admission.started(job.key, tokens)
        held.link.up(
            Started(
                request_id=record.request_id,
                attempt=held.attempt,
                prompt_tokens=tokens,
                cached_tokens=record.cached,
            )
        )
        return max(1, tokens - record.cached)

    def _computed(self, job: Job) -> None:
        held = self._held[job.key]
        record, asked = held.record, held.record.request
        if self.sick:
            record.failed_at = self._clock.now
            self._fail(held, ErrorCode.ENGINE_FAILED, "the engine failed")
            return
        if math.isnan(record.first_at):
            record.first_at = self._clock.now
        if asked.key:
            self._cache.keep(asked.key, max(asked.shared, self._cache.find(asked.key)))

    def _done(self, job: Job) -> None:
        held = self._held[job.key]
        asked = held.record.request
        self._tell(held, asked.answer)
        self._release(held)
        if asked.key.startswith(TALK):
            self._cache.keep(asked.key, asked.prompt + asked.answer)
        held.link.up(
            Finished(
                request_id=held.record.request_id,
                attempt=held.attempt,
                finish_reason="stop",
                usage=Usage(),
                load=self.load(),
            )
        )
        self._over()

    def _fail(self, held: Held, code: ErrorCode, message: str) -> None:
        self._tell(held, self.engine.made(held.job))
        self._drop(held)
        held.link.up(
            Failed(
                request_id=held.record.request_id,
                attempt=held.attempt,
                code=code,
                message=message,
                load=self.load(),
            )
        )

    def _tell(self, held: Held, made: int) -> None:
        job = held.job
        if made > job.told:
            ids = tuple(range(job.told, made))
            job.told = made
            delta = Delta(held.record.request_id, held.attempt, token_ids=ids)
            held.link.up(Deltas(deltas=(delta,)))

    def _drop(self, held: Held) -> None:
        self.engine.remove(held.job)
        self._release(held)

    def _release(self, held: Held) -> None:
        del self._held[held.job.key]
        self._admission.release(held.job.key, self._clock.now)
        self._over()
