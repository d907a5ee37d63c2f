"""The spans of a request in a worker."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from protocol.messages import Failed, Finished, Generate, Rejected
from protocol.spans import Place
from protocol.values import Load, SamplingParams
from worker.answer import Answer
from worker.engine.output import EngineOutput
from worker.traces import made

TRACE, ATTEMPT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BUSY = Rejected(request_id="r", attempt=0, load=Load(), reason="engine_busy")
LOST = Failed(request_id="r", attempt=0, load=Load(), code="worker_lost", message="SECRET")


def request(*, sampled: bool = True) -> Generate:
    return Generate(
        request_id="r",
        attempt=0,
        model="m",
        sampling=SamplingParams(),
        seed=0,
        prompt="SECRET",
        trace_context=Place(TRACE, ATTEMPT, sampled).carried,
    )


def answer(until: str) -> Answer:
    """One that came at 1, began at 2, had a token at 4 and its last one at 8; or not so far."""
    found = Answer(request(), 1.0)
    if until == "queue":
        return found
    head = EngineOutput("", prompt_tokens=7, cached_tokens=3, finish_reason=None, finished=False)
    found.start(head, 2.0)
    found.feed(head, 2.0)
    if until == "prefill":
        return found
    found.feed(EngineOutput("SEC", [1], 7, 1, None, new_text="SEC", finished=False, cached_tokens=3), 4.0)
    if until == "decode":
        return found
    found.feed(EngineOutput("SECRET", [2], 7, 2, "stop", new_text="RET", finished=True, cached_tokens=3), 8.0)
    return found


def test_a_whole_one_waits_reads_and_writes_beneath_the_attempt():
    whole = answer("end")
    spans = list(made(request(), whole, whole.finished, 9.0))
    assert [(s.name, s.began, s.ended, s.error) for s in spans] == [
        ("queue", 1.0, 2.0, ""),
        ("prefill", 2.0, 4.0, ""),
        ("decode", 4.0, 9.0, ""),
    ]
    assert {(s.place.trace_id, s.parent_id) for s in spans} == {(TRACE, ATTEMPT)}
    assert len({s.place.span_id for s in spans}) == 3
    assert [dict(s.attributes) for s in spans] == [
        {},
        {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 3},
        {"gen_ai.usage.output_tokens": 2, "gen_ai.response.finish_reasons": ("stop",)},
    ]
    known = {
        getattr(gen_ai_attributes, name) for name in dir(gen_ai_attributes) if name.startswith("GEN_AI_")
    }
    assert {name for span in spans for name in span.attributes} <= known
    assert "SEC" not in repr(spans)


@pytest.mark.parametrize(
    ("until", "end", "error"),
    [
        ("queue", BUSY, "engine_busy"),
        ("queue", None, "aborted"),
        ("prefill", LOST, "worker_lost"),
        ("decode", None, "aborted"),
    ],
)
def test_one_that_is_cut_off_ends_in_the_phase_that_it_had_reached(
    until: str, end: Finished | Failed | Rejected | None, error: str
):
    *before, last = made(request(), answer(until), end, 9.0)
    assert (last.name, last.ended, last.error) == (until, 9.0, error)
    assert [span.error for span in before] == [""] * len(before)
    assert "SECRET" not in repr(last)


def test_where_its_gateway_wants_none_there_is_none():
    assert list(made(request(sampled=False), answer("end"), None, 9.0)) == []
    for context in ({}, {"traceparent": "00-1-2-01"}):
        bare = Generate(
            request_id="r", attempt=0, model="m", sampling=SamplingParams(), seed=0, trace_context=context
        )
        assert list(made(bare, answer("end"), None, 9.0)) == []
