"""The answer to one request between the dispatcher, which fills it, and the endpoint, which writes it.

A list and a future rather than a queue: what comes while the client is slow is joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.pieces import Piece, joined
from gateway.registry import WorkerView
from protocol.config import LimitsConfig
from protocol.errors import ClusterError
from protocol.messages import Delta, Finished, Started
from protocol.values import Usage


class Waker:
    """Wakes the one who waits for news of any of the streams that share it."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def changed(self) -> None:
        """Wait for news. What came before the call is none: look first."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Stream:
    """One request's answer so far. Everything happens on the event loop."""

    def __init__(self, limits: LimitsConfig, clock: Callable[[], float], *, live: bool, waker: Waker) -> None:
        self._limits = limits
        self._clock = clock
        self._live = live
        self._deltas: list[Delta] = []
        self._waker = waker
        self._cut: Callable[[], None] | None = None
        self._size = 0
        self._quiet_since = clock()
        self._began_at = self._quiet_since
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._attempts = 0
        self.worker: WorkerView | None = None
        self.prompt = Usage()
        """The tokens of the prompt, known once a worker has begun."""
        self.end: Finished | None = None
        self.error: ClusterError | None = None
        self.gone = False
        """The client left."""
        self.silent = False
        """Nothing was written for so long that a sign of life is due."""
        self.overrun = False
        """The client read too slowly; its connection was cut."""

    # --- filled by the dispatcher ---

    def started(self, worker: WorkerView, message: Started) -> None:
        self.worker = worker
        self.prompt = Usage(prompt_tokens=message.prompt_tokens, cached_tokens=message.cached_tokens)
        self._started_at = self._clock()
        self._attempts = message.attempt + 1
        self._wake()

    def delta(self, delta: Delta) -> None:
        if self._first_token_at is None:
            self._first_token_at = self._clock()
        self._deltas.append(delta)
        size = len(delta.text) + len(delta.reasoning) + sum(len(c.arguments) + 1 for c in delta.tool_calls)
        if self._live and size:
            self._size += size
            self._wake()

    def finished(self, worker: WorkerView, message: Finished) -> None:
        self.worker = worker
        self.end = message
        self._wake()

    def failed(self, error: ClusterError) -> None:
        self.error = error
        self._wake()

    # --- told by the shell ---

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        self._wake()

    def tick(self, now: float) -> None:
        """Cut off who lets too much pile up; ask for a sign of life where there is nothing to write."""
        if self._cut is not None:
            if self._size > self._limits.stream_buffer_bytes and not self.overrun:
                self.overrun = True
                self._cut()
        elif self._live and now - self._quiet_since >= self._limits.keepalive_s:
            self.silent = True
            self._wake()

    # --- read by the endpoint ---

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.error is not None or self.gone

    def seconds(self) -> tuple[float | None, float]:
        """To the first token, and until now."""
        first = self._first_token_at
        return None if first is None else first - self._began_at, self._clock() - self._began_at

    def account(self) -> dict[str, str | int | float]:
        """What the log tells of it, as far as it came."""
        told: dict[str, str | int | float] = {}
        if self._attempts:
            told["attempts"] = self._attempts
        waited = (self._clock() if self._started_at is None else self._started_at) - self._began_at
        told["queue_s"] = round(waited, 3)
        first_s, whole_s = self.seconds()
        if first_s is not None:
            told["first_token_s"] = round(first_s, 3)
        if self.end is None:
            return told
        usage = self.end.usage
        told |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        if first_s is not None and whole_s > first_s and usage.completion_tokens > 1:
            told["tokens_per_s"] = round((usage.completion_tokens - 1) / (whole_s - first_s), 1)
        told["finish"] = self.end.finish_reason
        return told

    def pieces(self) -> list[Piece]:
        """What came since the last call."""
        deltas, self._deltas = self._deltas, []
        self._size = 0
        return joined(deltas)

    def writing(self, cut: Callable[[], None]) -> None:
        """A write begins, to a connection that `cut` ends."""
        self._quiet_since = self._clock()
        self._cut = cut

    def written(self) -> None:
        self._cut = None
        self.silent = False

    def _wake(self) -> None:
        self._waker.wake()
