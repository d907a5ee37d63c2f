"""The spans of requests, made of their lives when they are over. Ids, names and numbers only.

`chat MODEL` is the whole request. Beneath it stand `parse`, until it was read and understood, and for each
answer `queue`, whenever it was at no worker, and `attempt`, whenever it was at one. Beneath an attempt stand
the spans of its worker, where that lived to tell them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.body import Headers
from gateway.dialects.base import Asked
from gateway.lives import Event, Life
from protocol import spans
from protocol.spans import Place, Span, Value
from protocol.traces import Spans
from protocol.values import Usage

_ENDS = frozenset({"rejected", "again", "goes_on", "finished", "failed", "left"})
"""Events with which a request leaves a worker, or the line."""
_LEFT = "client_closed_request"


@dataclass(slots=True)
class Trace:
    """Of one request under way. Times are the event loop's."""

    collector: Spans
    place: Place
    parent_id: str
    request_id: str
    came_at: float
    parsed_at: float | None = None
    lives: Sequence[Life] = ()
    """One for each answer."""
    operation: str = "chat"
    attributes: dict[str, Value] = field(default_factory=dict)

    def understood(self, operation: str, lives: Sequence[Life], now: float) -> None:
        """What it asks for, in OpenTelemetry's words."""
        self.operation, self.lives, self.parsed_at = operation, lives, now

    def parsed(self, asked: Asked, lives: Sequence[Life], now: float) -> None:
        """It was understood, and asks for text."""
        self.understood("text_completion" if asked.prompts else "chat", lives, now)
        sampling = asked.sampling
        self._learn(
            {
                "gen_ai.request.stream": asked.stream,
                "gen_ai.request.choice.count": asked.n,
                "gen_ai.request.seed": asked.seed,
                "gen_ai.request.max_tokens": sampling.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.top_k": sampling.top_k or None,
                "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
                "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
            }
        )

    def answered(self, usage: Usage, first_s: Value | None) -> None:
        """What those of its answers took that are whole, and when the first token came."""
        self._learn({"gen_ai.response.time_to_first_chunk": first_s})
        if usage.prompt_tokens:
            self._learn(
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                    "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
                }
            )

    def end(self, model: str, code: str, now: float) -> None:
        """It is over: with `ok`, or an error's code."""
        offset = time.time() - now
        error = "" if code == "ok" else code
        self.collector.take(span.shifted(offset) for span in made(self, model, error, now))

    def _learn(self, told: Mapping[str, Value | None]) -> None:
        self.attributes |= {name: value for name, value in told.items() if value is not None}


class Traces:
    """Begins them."""

    def __init__(self, collector: Spans, ratio: float) -> None:
        self._collector = collector
        self._ratio = ratio

    def begin(self, headers: Headers, request_id: str, now: float) -> Trace | None:
        """It goes on from the client's, or is new. None where it is not sampled."""
        parent = _read(headers)
        place = spans.begun(self._ratio) if parent is None else parent.beneath()
        if not place.sampled:
            return None
        return Trace(self._collector, place, "" if parent is None else parent.span_id, request_id, now)


def _read(headers: Headers) -> Place | None:
    """Where the client's trace stands; one that names two does not say where, and begins anew."""
    given = {value for name, value in headers if name == spans.TRACEPARENT.encode()}
    return spans.read(given.pop().decode("latin-1")) if len(given) == 1 else None


def made(trace: Trace, model: str, error: str, now: float) -> Iterator[Span]:
    """All spans of a request that is over, in the event loop's time."""
    common: dict[str, Value] = {
        "gen_ai.operation.name": trace.operation,
        "gen_ai.provider.name": "studiofleet",
        **({"gen_ai.request.model": model, "gen_ai.response.model": model} if model else {}),
    }
    ends = [life.events[-1].facts for life in trace.lives if life.events]
    reasons = tuple(str(facts["finish_reason"]) for facts in ends if "finish_reason" in facts)
    whole: dict[str, Value] = {"gen_ai.response.finish_reasons": reasons} if reasons else {}
    name = f"{trace.operation} {model}".rstrip()
    attributes = {**common, **trace.attributes, **whole, "studiofleet.request_id": trace.request_id}
    yield Span(name, trace.place, trace.parent_id, trace.came_at, now, attributes, error, "server")
    if trace.parsed_at is None:
        yield _beneath(trace, "parse", trace.came_at, now, error)
        return
    yield _beneath(trace, "parse", trace.came_at, trace.parsed_at)
    for life in trace.lives:
        yield from _of_life(trace, common, life)


def _of_life(trace: Trace, common: Mapping[str, Value], life: Life) -> Iterator[Span]:
    """Its waits and its attempts, in order."""
    since = life.came_at
    sent: Event | None = None
    for event in life.events:
        if event.what == "sent":
            yield _beneath(trace, "queue", since, event.at)
            sent, since = event, event.at
        elif event.what in _ENDS:
            if sent is None:
                yield _beneath(trace, "queue", since, event.at, _why(event))
            else:
                yield _attempt(trace, common, sent, event)
            sent, since = None, event.at


def _attempt(trace: Trace, common: Mapping[str, Value], sent: Event, end: Event) -> Span:
    place = Place(trace.place.trace_id, sent.facts["span"])
    attributes: dict[str, Value] = {
        **common,
        "studiofleet.worker": sent.worker,
        "studiofleet.attempt": sent.facts["attempt"] + 1,
    }
    if "tokens" in end.facts:
        attributes["gen_ai.usage.output_tokens"] = end.facts["tokens"]
    return Span("attempt", place, trace.place.span_id, sent.at, end.at, attributes, _why(end), "client")


def _why(end: Event) -> str:
    """The code of what ended it; empty where it is whole."""
    return _LEFT if end.what == "left" else str(end.facts.get("code", end.facts.get("reason", "")))


def _beneath(trace: Trace, name: str, began: float, ended: float, error: str = "") -> Span:
    return Span(name, trace.place.beneath(), trace.place.span_id, began, ended, error=error)
