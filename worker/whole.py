"""Requests that are answered in one piece: vectors, and scores. Pure, but for the call of the engine."""

from __future__ import annotations

from collections.abc import Callable

from protocol.messages import Embed, Finished, Score, Started
from protocol.values import Load, Scores, Timings, Usage, Vectors
from worker.engine.base import BaseEngine
from worker.engine.output import Computing, PromptError

Computed = Embed | Score


class Whole:
    """When such a request came, when the engine took it, and what it took."""

    def __init__(self, request: Computed, now: float) -> None:
        self._request = request
        self._accepted_at = now
        self._started_at: float | None = None
        self._tokens = 0

    @property
    def started(self) -> bool:
        return self._started_at is not None

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=self._tokens)

    def phases(self, now: float) -> list[tuple[str, float, float]]:
        """As those of an answer in text, which has one more."""
        if self._started_at is None:
            return [("queue", self._accepted_at, now)]
        return [("queue", self._accepted_at, self._started_at), ("prefill", self._started_at, now)]

    def start(self, tokens: int, now: float) -> Started:
        """The engine took it, and counted its tokens."""
        self._started_at = now
        self._tokens = tokens
        request = self._request
        return Started(request_id=request.request_id, attempt=request.attempt, prompt_tokens=tokens)

    def end(self, now: float) -> Finished:
        """Its result is there; the load is still to be filled in."""
        started = now if self._started_at is None else self._started_at
        return Finished(
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            finish_reason="stop",
            usage=self.usage,
            load=Load(),
            timings=Timings(queued_s=started - self._accepted_at, prefill_s=now - started),
        )


async def computed(
    engine: BaseEngine, request: Computed, request_id: str, began: Callable[[int], None]
) -> Vectors | Scores:
    """What the engine makes of the request. `began` is told its tokens when the engine takes it."""
    if not isinstance(engine, Computing):
        raise PromptError("this worker's engine makes neither vectors nor scores", "unsupported")
    if isinstance(request, Embed):
        return await engine.embed(request, request_id, began)
    return await engine.score(request, request_id, began)
