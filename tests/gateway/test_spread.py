"""Values over buckets, as Prometheus counts them."""

from __future__ import annotations

import bisect

from hypothesis import given
from hypothesis import strategies as st

from gateway.spread import Spread

VALUES = st.lists(st.floats(0, 100))


def test_a_value_counts_in_its_bucket_and_all_above():
    spread = Spread((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        spread.add(value)
    assert spread.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert spread.sum == 12.0


@given(VALUES, st.lists(st.floats(0, 100), min_size=1, unique=True).map(sorted))
def test_each_bound_tells_how_many_values_are_at_most_that(values: list[float], bounds: list[float]):
    spread = Spread(bounds)
    for value in values:
        spread.add(value)
    values.sort()
    told = [count for _bound, count in spread.buckets()]
    assert told == [*(bisect.bisect_right(values, bound) for bound in bounds), len(values)]
