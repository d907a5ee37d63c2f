"""The answer to one request between the dispatcher, which fills it, and the endpoint, which writes it.

A list and a future rather than a queue: what comes while the client is slow is joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.pieces import Piece, joined
from gateway.registry import WorkerView
from gateway.spread import Spread
from gateway.turn import Turn
from protocol.config import LimitsConfig
from protocol.errors import ClusterError
from protocol.messages import Delta, Finished, Result, Started
from protocol.values import Usage


class Group:
    """What the streams of one client's request have in common: news of any wakes the one who waits.

    Plain attributes, as they are looked at for each token, and in slots: what is to be read of memory for
    each token costs more than what is done with it.
    """

    __slots__ = (
        *("turn", "_waiter", "_push", "_push_due", "_news", "worker", "prompt", "error", "pending", "silent"),
        *("gone", "cut", "wrote", "quiet_since"),
    )

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._waiter: asyncio.Future[None] | None = None
        self._push: Callable[[], bool] | None = None
        self._push_due = False
        self._news = False
        self.worker: WorkerView | None = None
        """Where the one is that began first; when it is moved before its first token, where it went."""
        self.prompt = Usage()
        """The tokens of its prompt."""
        self.error: ClusterError | None = None
        """What ends all of them, as an answer with a hole is none."""
        self.pending = 0
        """Streams without an end."""
        self.silent = False
        """Nothing was written for so long that a sign of life is due."""
        self.gone = False
        """The client left."""
        self.cut: Callable[[], None] | None = None
        """Ends the connection to which something is being written at the moment."""
        self.wrote = False
        """Something was written since the streams were last looked after."""
        self.quiet_since = 0.0
        """When the last write was seen."""

    async def changed(self, push: Callable[[], bool] | None = None) -> None:
        """Wait for news. What came since the last call ended is some, as that may have been in a write.

        That more of an answer came is none while `push`, called at the end of the loop's turn, says that
        it has written it: to wake a task for each token costs more than to write the token.
        """
        if not self._news:
            self._waiter = asyncio.get_running_loop().create_future()
            self._push = push
            try:
                await self._waiter
            finally:
                self._waiter = self._push = None
        self._news = False

    def grew(self) -> None:
        """More of an answer came."""
        if self._push is None:
            self.wake()
        elif not self._push_due:
            self._push_due = True
            self.turn.due.append(self)

    def push_now(self) -> None:
        """All that came this turn is there."""
        self._push_due = False
        push, waiter = self._push, self._waiter
        if push is None or waiter is None or waiter.done():
            return  # who waited looks for himself
        try:
            if not push():
                self.wake()
        except Exception as error:  # noqa: BLE001 (it is raised where it is waited for; others go on)
            waiter.set_exception(error)

    def wake(self) -> None:
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        self.wake()

    def writing(self, cut: Callable[[], None]) -> None:
        """A write begins, to a connection that `cut` ends."""
        self.cut = cut
        self.wrote = True

    def written(self) -> None:
        self.cut = None
        self.silent = False

    @property
    def is_over(self) -> bool:
        return not self.pending or self.error is not None or self.gone


class Stream:
    """One request's answer so far. Everything happens on the event loop."""

    __slots__ = (
        *("_limits", "_clock", "_live", "_deltas", "_prompt", "_prompt_told", "_group", "_size", "_gaps"),
        *("_began_at", "_started_at", "_first_token_at", "_last_token_at", "_attempts"),
        *("worker", "end", "value", "overrun"),
    )

    def __init__(
        self, limits: LimitsConfig, clock: Callable[[], float], gaps: Spread, *, live: bool, group: Group
    ) -> None:
        """`gaps` is told the seconds between its steps."""
        self._limits = limits
        self._clock = clock
        self._live = live
        self._deltas: list[Delta] = []
        self._prompt: Piece | None = None
        self._prompt_told = False
        self._group = group
        group.pending += 1
        self._size = 0
        self._began_at = clock()
        group.quiet_since = self._began_at
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._last_token_at = 0.0
        self._gaps = gaps
        self._attempts = 0
        self.worker: WorkerView | None = None
        self.end: Finished | None = None
        self.value: Any = None
        """Of a request that has no stream: what it asked for."""
        self.overrun = False
        """The client read too slowly; its connection was cut."""

    # --- filled by the dispatcher ---

    def started(self, worker: WorkerView, message: Started) -> None:
        named_by_us = self._group.worker is self.worker  # and that one was lost, if there was one
        self.worker = worker
        if named_by_us:
            self._group.worker = worker
            self._group.prompt = Usage(
                prompt_tokens=message.prompt_tokens, cached_tokens=message.cached_tokens
            )
        self._started_at = self._clock()
        self._attempts = message.attempt + 1
        if message.prompt_text or message.prompt_logprobs:
            self._prompt = Piece(prompt_text=message.prompt_text, prompt_logprobs=message.prompt_logprobs)
        self._group.wake()

    def delta(self, delta: Delta, now: float) -> None:
        if self._first_token_at is None:
            self._first_token_at = now
        else:
            self._gaps.add(now - self._last_token_at)
        self._last_token_at = now
        self._deltas.append(delta)
        if self._live:
            size = len(delta.text) + len(delta.reasoning)
            if delta.tool_calls:
                size += sum(len(call.arguments) + 1 for call in delta.tool_calls)
            if size:
                self._size += size
                self._group.grew()

    def result(self, result: Result) -> None:
        self.value = result.value

    def finished(self, worker: WorkerView, message: Finished) -> None:
        self.worker = worker
        self._group.worker = self._group.worker or worker
        self._group.pending -= 1
        self.end = message
        self._group.wake()

    def failed(self, error: ClusterError) -> None:
        self._group.error = error
        self._group.wake()

    # --- told by the shell ---

    def tick(self, now: float) -> None:
        """Cut off who lets too much pile up; ask for a sign of life where there is nothing to write."""
        group = self._group
        if group.cut is not None:
            if self._size > self._limits.stream_buffer_bytes and not self.overrun:
                self.overrun = True
                group.cut()
        elif group.wrote:
            group.wrote = False
            group.quiet_since = now
        elif self._live and now - group.quiet_since >= self._limits.keepalive_s:
            group.silent = True
            group.wake()

    # --- read by the endpoint ---

    @property
    def buffered(self) -> int:
        """Characters that wait for the client."""
        return self._size

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

    def plain(self) -> Delta | None:
        """What came since the last call, where that is one delta of nothing but text, as while the client
        keeps up; else nothing, and `pieces` has it.
        """
        deltas = self._deltas
        if len(deltas) != 1 or not (self._prompt is None or self._prompt_told):
            return None
        only = deltas[0]
        if not only.text or only.reasoning or only.tool_calls or only.logprobs:
            return None
        deltas.clear()
        self._size = 0
        return only

    def pieces(self) -> list[Piece]:
        """What came since the last call."""
        deltas, self._deltas = self._deltas, []
        self._size = 0
        pieces = joined(deltas)
        if self._prompt is not None and not self._prompt_told:
            self._prompt_told = True  # a second attempt brings it again
            pieces.insert(0, self._prompt)
        return pieces
