"""A client that measures: so many requests at once, each read piece by piece."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clusterctl.bench_figures import Sample

Connect = Callable[[float], http.client.HTTPConnection]
"""A new connection to the gateway, whose reads wait so many seconds."""

_WORDS = ("river", "stone", "cloud", "lamp", "seven", "green", "paper", "north", "window", "bridge", "salt")
_DONE = b"[DONE]"
_NOBODY = ConnectionRefusedError.__name__
_GIVEN_UP_AFTER = 20
"""So many requests in a row that find nobody end a level: what is left of it would fail as fast."""
GIVEN_UP = "given_up"
"""The kind of a request that its level's time did not suffice for."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What every request asks."""

    model: str
    words: int
    """Of a prompt; each begins with another one, so that no cache knows it."""
    max_tokens: int
    """Of an answer, which is never shorter."""
    key: str
    """Sent as bearer; none where it is empty."""

    def body(self) -> dict[str, Any]:
        """A prompt that was never sent before."""
        text = " ".join([secrets.token_hex(4), *itertools.islice(itertools.cycle(_WORDS), self.words)])
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Error | None = None


@dataclass
class _Answer:
    """What came of an answer so far."""

    pieces: list[float] = field(default_factory=list)
    usage: _Usage = field(default_factory=_Usage)
    worker: str = ""
    error: str = ""
    why: str = ""


class Client:
    """Asks one gateway. Not more than one level at a time."""

    def __init__(self, connect: Connect, question: Question) -> None:
        self._connect = connect
        self._question = question
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._unreached = 0
        """So many requests, one after the other, found nobody."""
        self.reasons: dict[str, str] = {}
        """What the first failure of each kind said."""
        self.answered = 0
        """Requests of the present level that are over; any thread may read it."""
        self.interrupted = False

    def level(self, concurrency: int, requests: int, limit_s: float) -> tuple[list[Sample], bool]:
        """So many requests, so many of them at once; and whether the time or Ctrl-C cut them short."""
        self._over.clear()
        self.answered = self._unreached = 0
        deadline = time.monotonic() + limit_s
        samples: list[Sample] = []
        tickets = iter(range(requests))
        with ThreadPoolExecutor(concurrency) as pool:
            clients = [pool.submit(self._ask_on, tickets, samples, deadline) for _ in range(concurrency)]
            try:
                wait(clients, timeout=limit_s)
            except KeyboardInterrupt:
                self.interrupted = True
            finally:
                self._end()
        for client in clients:
            client.result()
        return samples, len(samples) < requests or any(each.error == GIVEN_UP for each in samples)

    def ask(self, limit_s: float) -> Sample:
        """One request."""
        began = time.monotonic()
        answer = _Answer()
        try:
            connection = self._connect(max(0.1, limit_s))
            with self._lock:
                self._open.add(connection)
            try:
                self._converse(connection, answer)
            finally:
                with self._lock:
                    self._open.discard(connection)
                connection.close()
        except (OSError, http.client.HTTPException, msgspec.MsgspecError, ValueError) as error:
            answer.error, answer.why = type(error).__name__, str(error)
        if answer.error and self._over.is_set():
            answer.error = GIVEN_UP
        if answer.error:
            self.reasons.setdefault(answer.error, answer.why)
        return Sample(
            began=began,
            ended=time.monotonic(),
            pieces=tuple(answer.pieces),
            tokens=answer.usage.completion_tokens,
            prompt_tokens=answer.usage.prompt_tokens,
            worker=answer.worker,
            error=answer.error,
        )

    def _ask_on(self, tickets: Iterator[int], samples: list[Sample], deadline: float) -> None:
        """As long as there are tickets, and time."""
        while not self._over.is_set():
            with self._lock:
                if next(tickets, None) is None:
                    return
            sample = self.ask(deadline - time.monotonic())
            with self._lock:
                samples.append(sample)
                self.answered = len(samples)
                self._unreached = self._unreached + 1 if sample.error == _NOBODY else 0
                if self._unreached >= _GIVEN_UP_AFTER:
                    self._over.set()

    def _end(self) -> None:
        """Whatever still runs fails at once."""
        self._over.set()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _converse(self, connection: http.client.HTTPConnection, answer: _Answer) -> None:
        headers = {"content-type": "application/json"}
        if self._question.key:
            headers["authorization"] = f"Bearer {self._question.key}"
        connection.connect()
        if self._over.is_set():  # it was set before there was a socket that could be shut
            raise ConnectionAbortedError
        connection.request(
            "POST", "/v1/chat/completions", msgspec.json.encode(self._question.body()), headers
        )
        response = connection.getresponse()
        answer.worker = response.headers.get("x-worker-id", "")
        if response.status != 200:
            _fail(answer, msgspec.json.decode(response.read(), type=_Event).error, f"http_{response.status}")
            return
        for line in response:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                if data == _DONE:
                    return
                _take(answer, msgspec.json.decode(data, type=_Event))
                if answer.error:
                    return
        _fail(answer, None, "cut_off")


def _take(answer: _Answer, event: _Event) -> None:
    if event.error is not None:
        _fail(answer, event.error, "error")
    if event.usage is not None:
        answer.usage = event.usage
    deltas = [choice.delta for choice in event.choices]
    if any(delta.content or delta.reasoning or delta.reasoning_content for delta in deltas):
        answer.pieces.append(time.monotonic())


def _fail(answer: _Answer, error: _Error | None, kind: str) -> None:
    answer.error = (error and error.code) or kind
    answer.why = error.message if error else "the answer ended before its end"
