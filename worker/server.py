"""The worker process: an engine behind links to all gateways, from its first hello to its exit."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from protocol.addresses import Home
from protocol.codec import FrameError
from protocol.config import ClusterConfig, WorkerConfig
from protocol.messages import (
    Abort,
    AnyMessage,
    ClearCaches,
    Drain,
    Embed,
    Generate,
    Goodbye,
    Heartbeat,
    Hello,
    LoadModel,
    Message,
    Ping,
    Score,
    Stats,
    Tokenize,
    Undrain,
    Unknown,
    Unload,
    Welcome,
    WhoAreYou,
)
from protocol.states import ExitCode, WorkerState
from protocol.traces import Spans
from protocol.watchdog import Watchdog
from worker.core import Core
from worker.dialing import dials
from worker.engine.base import BaseEngine
from worker.engine.output import ModelUnavailable, StopRequested
from worker.hang import HangWatch
from worker.inquiries import Inquiries
from worker.link import Link
from worker.report import Report, capacity_of
from worker.residence import Residence
from worker.startup import ENGINE_STOP_S, understood
from worker.tokenizing import Tokenizer

logger = logging.getLogger(__name__)

_AFTER_DRAIN = {"stay": ExitCode.OK, "exit": ExitCode.OK, "restart": ExitCode.RESTART}
LAST_WORDS_MS = 1000
"""So long the last messages may take to leave."""


class Server:
    """Owns the engine, the requests, the links and the state; lives on the event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        worker: WorkerConfig,
        engine: BaseEngine,
        home: Home,
        arrived: Callable[[bool], None] = lambda _ready: None,
        traces: Spans | None = None,
    ) -> None:
        """`arrived` is called whenever it serves (then with True), or would if asked."""
        self._config = config
        self._worker = worker
        self._engine = engine
        self._arrived = arrived
        self._dials = dials(config, worker.id, home)
        self._links: dict[str, Link] = {}
        self._core = Core(
            engine,
            capacity_of(worker),
            self._send,
            freed=self._beat_soon,
            over=self._request_over,
            broken=self._engine_failed,
        )
        self._core.traces = traces
        self._tokenizer = Tokenizer(engine, self._send, self._core.load, self._engine_failed)
        self._residence = Residence(config, worker, engine, self._core, home, self._said)
        self._life = self._residence.life
        self._report = Report(worker, engine, self._core, self._residence)
        self._giving_up: asyncio.TimerHandle | None = None
        self._drain_timeout_s = worker.drain_timeout_s
        self._watchdog = Watchdog(config.heartbeat.loop_stall_s)
        self._beat_due = False
        self._taken_leave = False  # what a gateway hears after a goodbye would register the worker again
        self._inquiries = Inquiries(engine, self._send, self._core.load)
        self._answers: dict[str, str] = {}
        """What each gateway said last to our hello."""
        self._handlers: dict[type, Callable[[str, Any], None]] = {
            Abort: lambda gateway, message: self._core.abort(gateway, message.request_id),
            Ping: lambda _gateway, _message: None,
            Welcome: self._welcomed,
            WhoAreYou: self._introduce,
            Drain: self._drain,
            Undrain: self._undrain,
            Stats: self._inquiries.stats,
            ClearCaches: self._inquiries.clear_caches,
            Embed: self._core.compute,
            Score: self._core.compute,
            Tokenize: self._tokenizer.ask,
            LoadModel: self._inquiries.unsupported,
            Unload: self._inquiries.unsupported,
        }
        if self._residence.on_demand:
            self._handlers[LoadModel] = lambda _gateway, _message: self._residence.load()
            self._handlers[Unload] = lambda _gateway, message: self._residence.unload(drain=message.drain)

    @property
    def is_stuck(self) -> bool:
        """Whether threads or requests of the engine may keep the process from ending."""
        return self._residence.is_stuck or bool(self._core.held)

    @property
    def last_words(self) -> str:
        """Why it ends, once it does."""
        return self._life.detail

    async def run(self) -> ExitCode:
        """From the first hello to the last goodbye."""
        self._loop = asyncio.get_running_loop()
        self._hang = HangWatch(self._worker.step_stall_s, self._loop.time())
        self._leaving = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._leave, ExitCode.OK, f"asked to by {number.name}")
        logger.info("worker %s starts, incarnation %s", self._worker.id, self._report.incarnation)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        for dial in self._dials:
            self._links[dial.gateway] = Link(context, dial, self)
        beat = self._loop.create_task(self._beat_on())
        beat.add_done_callback(self._beating_ended)
        try:
            with self._watchdog:
                await self._serve()
        finally:
            beat.cancel()
            for link in self._links.values():
                link.close(LAST_WORDS_MS)
            context.term()
        code = ExitCode.FAULT if self._life.exit_code is None else self._life.exit_code
        logger.info("worker %s ends with %s: %s", self._worker.id, code.name, self._life.detail)
        return code

    # --- life ---

    async def _serve(self) -> None:
        residence = self._loop.create_task(self._residence.run())
        leaving = self._loop.create_task(self._leaving.wait())
        await asyncio.wait({residence, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not residence.done():
            self._residence.cut_short()
            residence.cancel()
        await asyncio.wait({residence})
        if not residence.cancelled() and (error := residence.exception()) is not None:
            self._start_failed(understood(error))
        await leaving
        await self._finish()

    def _engine_failed(self, why: str) -> None:
        self._leave(ExitCode.FAULT, f"the engine failed: {why}")
        self._residence.close()  # before gateways hear of its requests, which must not come back here

    def _start_failed(self, error: BaseException) -> None:
        if isinstance(error, StopRequested):
            return
        if isinstance(error, ValueError):
            logger.error("the model cannot be loaded: %s", error)
            self._leave(ExitCode.MISCONFIGURED, str(error))
            return
        trace = None if isinstance(error, ModelUnavailable) else error
        logger.error("the engine could not be started: %s", error, exc_info=trace)
        self._leave(ExitCode.FAULT, f"the engine could not be started: {error}")

    async def _finish(self) -> None:
        """Let the running requests end, give up the rest, say goodbye."""
        if self._life.state in (WorkerState.READY, WorkerState.DRAINING):
            self._residence.close()
            if self._life.last_state is WorkerState.STOPPED:
                await asyncio.wait(
                    {self._loop.create_task(self._core.ended())}, timeout=self._drain_timeout_s
                )
            self._core.abandon(self._life.detail, died=self._life.last_state is WorkerState.FAILED)
            await asyncio.wait({self._loop.create_task(self._core.ended())}, timeout=ENGINE_STOP_S)
            self._core.flush()
        self._residence.enter(self._life.last_state)
        await self._connections()
        for gateway in self._links:
            self._send(gateway, Goodbye(reason=self._life.detail))
        self._taken_leave = True
        await self._residence.end()

    async def _connections(self) -> None:
        """A process that ends as soon as it began has something to say: give its links a moment."""
        end = self._loop.time() + LAST_WORDS_MS / 1000
        while self._life.last_state is WorkerState.FAILED and self._loop.time() < end:
            if all(link.connected for link in self._links.values()):
                return
            await asyncio.sleep(0.02)

    def _leave(self, code: ExitCode, why: str) -> None:
        logger.info("worker %s is to end: %s", self._worker.id, why)
        self._life.leave(code, why)
        self._leaving.set()

    def _request_over(self) -> None:
        self._residence.used()

    def _said(self, new_card: bool) -> None:
        if self._life.state in (WorkerState.READY, WorkerState.IDLE):
            self._arrived(self._life.state is WorkerState.READY)
        if new_card:
            self._core.learn(self._report.facts())
            for gateway in self._links:
                self._send(gateway, self._hello())
        self._beat()

    # --- what is said ---

    def greeting(self) -> tuple[Message, ...]:
        return () if self._taken_leave else (self._hello(), self._heartbeat())

    def _hello(self) -> Hello:
        return self._report.hello(len(self._links))

    def _heartbeat(self) -> Heartbeat:
        self._hang.look(self._core.step_age_s(), self._loop.time())
        return self._report.heartbeat(self._inquiries.cache_epoch, self._hang.age_s)

    async def _beat_on(self) -> None:
        heartbeat = self._config.heartbeat
        while True:
            await asyncio.sleep(heartbeat.interval_s)
            self._watchdog.beat()
            for link in self._links.values():
                if link.is_silent(heartbeat.lost_s):
                    self.lost(link.gateway, f"its gateway was silent for {heartbeat.lost_s} s")
            if getattr(self._engine, "failed", False) and not self._life.leaving:
                self._leave(ExitCode.FAULT, "the engine failed, and no request was there to hear it")
            self._beat()
            if self._residence.loaded and self._hang.why and self._life.exit_code is not ExitCode.FAULT:
                self._hung()

    def _hung(self) -> None:
        """Its thread cannot be ended from within: streams go on elsewhere, and a new process comes."""
        self._leave(ExitCode.FAULT, self._hang.why)
        self._residence.close()
        self._core.abandon(self._hang.why, died=True)

    def _beating_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the heartbeat failed", exc_info=error)
            self._leave(ExitCode.FAULT, f"the heartbeat failed: {error}")

    def _beat(self) -> None:
        self._beat_due = False
        message = self._heartbeat()
        for gateway in self._links:
            self._send(gateway, message)

    def _beat_soon(self) -> None:
        """Places came free: gateways that wait for one hear of it now."""
        if not self._beat_due:
            self._beat_due = True
            self._loop.call_soon(self._beat)

    def _send(self, gateway: str, message: Message) -> None:
        if not self._taken_leave:
            self._links[gateway].send(message)

    # --- what is heard ---

    def received(self, gateway: str, message: AnyMessage | Unknown, parts: Sequence[bytes] = ()) -> None:
        if isinstance(message, Generate):
            self._core.generate(gateway, message, parts)
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            kind = message.tag if isinstance(message, Unknown) else type(message).__name__
            self._inquiries.odd_messages["unknown_messages"] += 1
            logger.debug("gateway %s sent a %.50r, which this version does not know", gateway, kind)
            return
        handler(gateway, message)

    def malformed(self, gateway: str, error: FrameError) -> None:
        self._inquiries.odd_messages["malformed_messages"] += 1
        logger.warning("gateway %s sent what is no message: %s", gateway, error)

    def lost(self, gateway: str, why: str) -> None:
        self._core.abandon(why, gateway)

    def _welcomed(self, gateway: str, message: Welcome) -> None:
        answer = f"refused: {message.refused}" if message.refused else "registered"
        if answer != self._answers.get(gateway):
            self._answers[gateway] = answer
            level = logging.ERROR if message.refused else logging.INFO
            logger.log(level, "gateway %s: %s", gateway, answer)

    def _introduce(self, gateway: str, _message: WhoAreYou) -> None:
        for message in self.greeting():
            self._send(gateway, message)

    def _drain(self, gateway: str, message: Drain) -> None:
        if message.then not in _AFTER_DRAIN:
            logger.error(
                "gateway %s asks to drain and then to %.50r: unknown, not done", gateway, message.then
            )
            return
        logger.info("gateway %s asks to drain, then %s", gateway, message.then)
        if message.then == "stay":
            self._residence.drain()
            self._give_up_after(message.timeout_s)
            return
        if message.timeout_s is not None:
            self._drain_timeout_s = message.timeout_s
        self._leave(_AFTER_DRAIN[message.then], f"asked to {message.then} by gateway {gateway}")

    def _give_up_after(self, timeout_s: float | None) -> None:
        """Without a limit, a drained worker that stays lets its requests run as long as they need."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        if timeout_s is not None:
            why = f"it was drained and {timeout_s:g} s are over"
            self._giving_up = self._loop.call_later(timeout_s, self._core.abandon, why)

    def _undrain(self, gateway: str, _message: Undrain) -> None:
        logger.info("gateway %s asks to take requests again", gateway)
        self._give_up_after(None)
        self._residence.undrain()
