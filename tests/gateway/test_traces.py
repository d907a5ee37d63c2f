"""The spans that are made of a request's life."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from gateway.dialects.base import Asked
from gateway.traces import Trace, Traces, made
from protocol.config import QueueConfig
from protocol.errors import ErrorCode
from protocol.messages import Generate
from protocol.spans import Place, Span
from protocol.values import SamplingParams, Usage
from tests.gateway.fleet import Fleet

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = [(b"traceparent", f"00-{TRACE}-{CLIENT}-01".encode())]
ASKED = Asked(model="m", sampling=SamplingParams(max_tokens=5, stop=("SECRET",)), seed=3, stream=True)


class Kept:
    """A collector that keeps what it takes."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def take(self, spans: Any) -> None:
        self.spans += spans

    def close(self) -> None:
        raise NotImplementedError


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(queue=QueueConfig(max_requests=4))


def traced(fleet: Fleet) -> Trace:
    """A request under way, named r."""
    trace = Traces(Kept(), 1.0).begin(PARENT, "r", fleet.now)
    assert trace is not None
    fleet.ask("r", trace_context=trace.place.carried)
    trace.parsed(ASKED, fleet.dispatcher.lives.of("r"), fleet.now)
    return trace


def carried(message: Generate) -> str:
    return message.trace_context["traceparent"].split("-")[2]


def story(spans: list[Span]) -> list[tuple[str, float, float, str]]:
    return [(span.name, span.began, span.ended, span.error) for span in spans]


def test_a_request_that_is_rejected_then_lost_then_served_is_three_attempts_under_one_trace(fleet: Fleet):
    fleet.join("a")
    trace = traced(fleet)
    sent = [fleet.last(b"a")]
    fleet.reject(b"a")
    fleet.join("b")
    fleet.pass_time(1, beating=(b"b",))
    sent.append(fleet.last(b"b"))
    fleet.start(b"b")
    fleet.pass_time(2, beating=(b"a", b"b"))
    fleet.lose(b"b")
    fleet.pass_time(1, beating=(b"a",))
    sent.append(fleet.last(b"a"))
    fleet.start(b"a")
    fleet.finish(b"a")
    whole, parse, *rest = spans = list(made(trace, "m", "", fleet.now))
    assert (whole.name, whole.kind, whole.parent_id, whole.error) == ("chat m", "server", CLIENT, "")
    assert parse.name == "parse"
    assert {span.place.trace_id for span in spans} == {TRACE}
    assert {span.parent_id for span in (parse, *rest)} == {whole.place.span_id}
    assert len({span.place.span_id for span in spans}) == len(spans)
    attempts = [span for span in rest if span.name == "attempt"]
    assert [(s.attributes["studiofleet.worker"], s.error) for s in attempts] == [
        ("a", "engine_busy"),
        ("b", "worker_lost"),
        ("a", ""),
    ]
    assert [span.place.span_id for span in attempts] == [carried(message) for message in sent]
    assert [span.attributes["studiofleet.attempt"] for span in attempts] == [1, 1, 2]
    queued = [span for span in rest if span.name == "queue"]
    assert len(queued) == 3
    ends = sorted((span.began, span.ended) for span in rest)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ends))  # no gap
    assert (whole.began, whole.ended) == (ends[0][0], ends[-1][1])


def test_whole_answers_tell_what_they_took_in_the_words_of_the_convention_and_no_text(fleet: Fleet):
    fleet.join("a")
    trace = traced(fleet)
    fleet.start(b"a")
    fleet.finish(b"a")
    trace.answered(Usage(prompt_tokens=7, completion_tokens=2, cached_tokens=3), 0.25)
    whole = next(made(trace, "m", "", fleet.now))
    assert whole.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "studiofleet",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.seed": 3,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "studiofleet.request_id": "r",
    }
    known = {
        getattr(gen_ai_attributes, name) for name in dir(gen_ai_attributes) if name.startswith("GEN_AI_")
    }
    assert set(whole.attributes) - {"studiofleet.request_id"} <= known


def test_who_leaves_while_waiting_has_no_attempt_and_who_leaves_later_has_one(fleet: Fleet):
    fleet.join("a")
    fleet.ask("other")
    waiting = traced(fleet)
    fleet.pass_time(3, beating=(b"a",))
    fleet.dispatcher.cancel("r", fleet.now)
    left = ErrorCode.CLIENT_CLOSED_REQUEST
    told = story(list(made(waiting, "m", left, fleet.now)))
    came = waiting.came_at
    assert told[2:] == [("queue", came, came + 3, left)]
    fleet.dispatcher.cancel("other", fleet.now)
    sent = traced(fleet)
    fleet.pass_time(2, beating=(b"a",))
    fleet.dispatcher.cancel("r", fleet.now)
    assert [name for name, *_ in story(list(made(sent, "m", left, fleet.now)))][2:] == ["queue", "attempt"]
    assert list(made(sent, "m", left, fleet.now))[-1].error == left


def test_what_cannot_be_read_is_a_trace_of_two_spans():
    trace = Trace(Kept(), Place(TRACE, CLIENT), "", "r", 5.0)
    assert story(list(made(trace, "", "invalid_request", 6.0))) == [
        ("chat", 5.0, 6.0, "invalid_request"),
        ("parse", 5.0, 6.0, "invalid_request"),
    ]


def test_a_trace_is_new_or_the_clients_and_only_what_is_sampled_is_one():
    always, never = Traces(Kept(), 1.0), Traces(Kept(), 0.0)
    begun = always.begin([], "r", 0.0)
    assert begun is not None
    assert (begun.parent_id, begun.place.trace_id == TRACE) == ("", False)
    assert never.begin([], "r", 0.0) is None
    gone_on = never.begin(PARENT, "r", 0.0)
    assert gone_on is not None
    assert (gone_on.parent_id, gone_on.place.trace_id) == (CLIENT, TRACE)
    assert always.begin([(b"traceparent", f"00-{TRACE}-{CLIENT}-00".encode())], "r", 0.0) is None


def test_two_traceparents_are_none_unless_they_say_the_same():
    always = Traces(Kept(), 1.0)
    other = (b"traceparent", f"00-{'1' * 32}-{CLIENT}-01".encode())
    begun, gone_on = always.begin([*PARENT, other], "r", 0.0), always.begin([*PARENT, *PARENT], "r", 0.0)
    assert begun is not None
    assert gone_on is not None
    assert (begun.parent_id, begun.place.trace_id in (TRACE, "1" * 32)) == ("", False)
    assert (gone_on.parent_id, gone_on.place.trace_id) == (CLIENT, TRACE)


def test_spans_are_sent_in_unix_time(fleet: Fleet):
    fleet.join("a")
    trace = traced(fleet)
    trace.end("m", "ok", fleet.now)
    kept = trace.collector
    assert isinstance(kept, Kept)
    assert all(1.7e9 < span.began <= span.ended < 1e11 for span in kept.spans)


def test_a_request_without_a_trace_carries_nothing(fleet: Fleet):
    fleet.join("a")
    fleet.ask("r")
    assert fleet.last(b"a").trace_context == {}
    (life,) = fleet.dispatcher.lives.of("r")
    assert "span" not in life.events[-1].facts
