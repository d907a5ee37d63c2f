"""Who is prefilled next, and in pieces of what size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.prefill import Pieces, PrefillQueue, Rate, pieces


def filled(*entries):
    queue: PrefillQueue[object] = PrefillQueue()
    for name, tokens, since in entries:
        queue.add(name, tokens, since)
    return queue


def taken(queue, now=0.0, rate=100.0, budget=0, places=8):
    return [prompt.item for prompt in queue.take(now, rate, budget, places)]


def test_the_shortest_comes_first():
    queue = filled(("long", 900, 0.0), ("short", 30, 0.0), ("middle", 300, 0.0))
    assert [taken(queue) for _ in range(4)] == [["short"], ["middle"], ["long"], []]


def test_of_equals_the_first_comes_first():
    assert taken(filled(("first", 30, 1.0), ("second", 30, 1.0)), now=1.0) == ["first"]


@pytest.mark.parametrize("rate", [0.0, 100.0, 5000.0])
def test_a_long_prompt_is_not_starved_by_short_ones(rate):
    queue = filled(("long", 2000, 0.0))
    now = 0.0
    for number in range(1000):
        now += 0.5
        queue.add(f"short {number}", 30, now)
        if taken(queue, now, rate) == ["long"]:
            break
    assert now <= 11


def test_short_prompts_of_similar_length_are_read_together():
    queue = filled(("a", 30, 0.0), ("b", 36, 0.0), ("c", 33, 0.0), ("long", 900, 0.0))
    assert taken(queue, budget=128) == ["a", "c", "b"]
    assert taken(queue, budget=128) == ["long"]


def test_no_more_are_read_together_than_there_are_places():
    assert taken(filled(("a", 30, 0.0), ("b", 30, 0.0)), budget=128, places=1) == ["a"]
    assert taken(filled(("a", 30, 0.0)), budget=128, places=0) == []


def test_prompts_are_not_read_together_when_most_of_it_would_be_padding():
    assert taken(filled(("a", 10, 0.0), ("b", 60, 0.0)), budget=512) == ["a"]


def test_one_that_is_not_admitted_stays():
    queue = filled(("a", 30, 0.0), ("b", 31, 0.0))
    assert [p.item for p in queue.take(0.0, 0.0, 128, 8, lambda item: item == "b")] == ["b"]
    assert taken(queue) == ["a"]


def test_a_long_prompt_is_put_aside_for_a_short_one_but_not_for_ever():
    assert filled(("short", 30, 5.0)).overtakes(1500, 0.0, now=5.0, rate=100.0)
    assert not filled(("late", 30, 8.0)).overtakes(1500, 0.0, now=8.0, rate=100.0)


def test_a_prompt_that_is_nearly_read_is_not_put_aside():
    assert not filled(("short", 30, 5.0)).overtakes(40, 5.0, now=5.0, rate=100.0)


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 100)), max_size=20),
    st.integers(32, 2048),
    st.integers(0, 16),
)
def test_a_group_fits_into_one_step_and_leaves_the_rest(entries, budget, places):
    queue = filled(*((number, tokens, since) for number, (tokens, since) in enumerate(entries)))
    group = queue.take(100.0, 200.0, budget, places)
    assert len(group) <= places
    assert bool(group) == bool(entries and places)
    assert len(queue) == len(entries) - len(group)
    if len(group) > 1:
        longest = max(prompt.tokens for prompt in group)
        assert longest * len(group) <= budget
        assert sum(prompt.tokens for prompt in group) >= 0.75 * longest * len(group)


def test_removing_by_identity_and_counting():
    first, second = object(), object()
    queue = filled((first, 10, 0.0), (second, 20, 0.0))
    assert len(queue) == 2
    assert queue.remove(first)
    assert not queue.remove(first)
    assert len(queue) == 1


@pytest.mark.parametrize(
    ("rate", "decoding", "expected"),
    [
        (0.0, True, Pieces(32, 128)),
        (100.0, True, Pieces(32, 128)),
        (400.0, True, Pieces(100, 400)),
        (50_000.0, True, Pieces(512, 512)),
        (0.0, False, Pieces(128, 512)),
        (100.0, False, Pieces(200, 512)),
        (50_000.0, False, Pieces(2048, 2048)),
    ],
)
def test_pieces_take_a_set_time_within_bounds(rate, decoding, expected):
    assert pieces(rate, decoding=decoding) == expected


def test_a_rate_begins_with_its_first_measurement_and_follows_later_ones():
    rate = Rate()
    rate.measure(0, 1.0)
    rate.measure(5, 0.0)
    assert rate.value == 0
    rate.measure(100, 0.5)
    assert rate.value == 200
    for _ in range(100):
        rate.measure(100, 1.0)
    assert rate.value == pytest.approx(100, rel=0.01)
