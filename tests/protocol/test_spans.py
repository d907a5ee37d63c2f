"""Where a trace stands, as it travels; the forms are those of W3C's Trace Context."""

from __future__ import annotations

import pytest

from protocol import spans
from protocol.spans import Place, Span

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
        ("", None),
        ("00", None),
        (f"00-{TRACE}-{SPAN}", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE[:-1]}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
    ],
)
def test_a_traceparent_is_read_or_is_none(text: str, sampled: bool | None):
    assert spans.read(text) == (None if sampled is None else Place(TRACE, SPAN, sampled))


def test_what_travels_is_read_as_it_was():
    for place in (Place(TRACE, SPAN), Place(TRACE, SPAN, sampled=False)):
        assert spans.read(place.carried["traceparent"]) == place


def test_within_a_span_its_id_travels_and_the_trace_stays():
    within = spans.within(Place(TRACE, SPAN).carried, "1" * 16)
    assert spans.read(within["traceparent"]) == Place(TRACE, "1" * 16)
    assert spans.within({"traceparent": "nonsense"}, "1" * 16) == {}


def test_new_traces_and_spans_have_ids_of_their_own():
    begun = [spans.begun(1.0) for _ in range(100)]
    assert len({place.trace_id for place in begun}) == len({place.span_id for place in begun}) == 100
    assert all(spans.read(place.carried["traceparent"]) == place for place in begun)
    beneath = begun[0].beneath()
    assert (beneath.trace_id, beneath.span_id == begun[0].span_id) == (begun[0].trace_id, False)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_so_many_are_sampled_as_the_ratio_says(ratio: float):
    count = sum(spans.begun(ratio).sampled for _ in range(10_000))
    assert abs(count - 10_000 * ratio) <= (500 if 0 < ratio < 1 else 0)


def test_a_span_in_another_clock_is_as_long_as_before():
    span = Span("x", Place(TRACE, SPAN), "", 1.0, 3.0).shifted(100.0)
    assert (span.began, span.ended) == (101.0, 103.0)
