"""What became of the last requests, and why each went where it went. Ids and names only. Pure."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway import routing
from gateway.registry import WorkerView
from protocol.messages import Finished, Started

_KEPT = 2000
"""Requests."""
_MOST_EVENTS = 100
"""Of one request; the newest are dropped, but for its end."""
_MOST_CONSIDERED = 8
"""Workers, in one choice."""


class Event(msgspec.Struct, frozen=True):
    at: float
    what: str
    """One of: came, waits, considered, sent, rejected, began, again, goes_on, finished, failed, left."""
    worker: str = ""
    facts: dict[str, Any] = {}


class Life:
    """Of one request, in order."""

    def __init__(self, request_id: str, model: str, now: float) -> None:
        self.request_id = request_id
        self.model = model
        self.came_at = now
        self.events: list[Event] = []

    def note(self, now: float, what: str, worker: str = "", **facts: Any) -> None:
        if len(self.events) < _MOST_EVENTS:
            self.events.append(Event(now, what, worker, facts))

    def began(self, now: float, worker: WorkerView, message: Started) -> None:
        prompt, cached = message.prompt_tokens, message.cached_tokens
        self.note(now, "began", worker.worker_id, prompt_tokens=prompt, cached_tokens=cached)

    def finished(self, now: float, worker: WorkerView, message: Finished) -> None:
        reason, tokens = message.finish_reason, message.usage.completion_tokens
        times = message.timings
        inside = {"queued": times.queued_s, "prefill": times.prefill_s, "decode": times.decode_s}
        told = {name: round(seconds, 4) for name, seconds in inside.items() if seconds}
        facts: dict[str, Any] = {"worker_s": told} if told else {}
        self.end(now, "finished", worker.worker_id, finish_reason=reason, tokens=tokens, **facts)

    def end(self, now: float, what: str, worker: str = "", **facts: Any) -> None:
        self.events.append(Event(now, what, worker, facts))

    def told(self) -> dict[str, Any]:
        """For the operator; times are seconds since it came."""
        return {
            "id": self.request_id,
            "model": self.model,
            "events": [
                {"after_s": round(event.at - self.came_at, 4), "what": event.what}
                | ({"worker": event.worker} if event.worker else {})
                | event.facts
                for event in self.events
            ],
        }


class Lives:
    """Owns the lives of the last requests, those under way too."""

    def __init__(self) -> None:
        self._lives: OrderedDict[str, Life] = OrderedDict()

    def begin(self, request_id: str, model: str, now: float) -> Life:
        life = self._lives[request_id] = Life(request_id, model, now)
        if len(self._lives) > _KEPT:
            self._lives.popitem(last=False)
        return life

    def of(self, request_id: str) -> list[Life]:
        """Those of a client's request, by the id that it was told: each choice's has more behind a dot."""
        return [
            life
            for known, life in self._lives.items()
            if known == request_id or known.startswith(f"{request_id}.")
        ]

    def failures(self, most: int, now: float) -> list[dict[str, Any]]:
        """The last requests that failed, the newest first."""
        ends = ((life, life.events[-1]) for life in reversed(self._lives.values()) if life.events)
        failed = ((life, end) for life, end in ends if end.what == "failed")
        return [
            {"id": life.request_id, "model": life.model, "age_s": round(now - end.at)} | end.facts
            for life, end in itertools.islice(failed, most)
        ]


def considered(
    sound: Sequence[WorkerView], free: Sequence[WorkerView], tried: Iterable[str]
) -> dict[str, Any]:
    """The facts of a choice: who could be asked, at which cost, and how many could not."""
    told: dict[str, Any] = {
        "free": [
            {
                "worker": view.worker_id,
                "running": view.load.running,
                "waiting": view.load.waiting,
                "unconfirmed": view.unconfirmed,
                "cost_s": round(routing.drain_cost(view), 3),
            }
            for view in free[:_MOST_CONSIDERED]
        ]
    }
    more = {
        "more_free": max(0, len(free) - _MOST_CONSIDERED),
        "without_a_place": len(sound) - len(free),
        "tried": sorted(tried),
    }
    return told | {name: value for name, value in more.items() if value}
