"""Who is prefilled next, and in pieces of what size."""

import pytest

from worker.engine.prefill import PrefillQueue, Rate, chunk_tokens


def filled(*entries):
    queue: PrefillQueue[object] = PrefillQueue()
    for name, tokens, since in entries:
        queue.add(name, tokens, since)
    return queue


def test_the_shortest_comes_first():
    queue = filled(("long", 900, 0.0), ("short", 30, 0.0), ("middle", 300, 0.0))
    assert [queue.pop(0.0) for _ in range(4)] == ["short", "middle", "long", None]


def test_of_equals_the_first_comes_first():
    queue = filled(("first", 30, 1.0), ("second", 30, 1.0))
    assert queue.pop(1.0) == "first"


def test_a_long_prompt_is_not_starved_by_short_ones():
    queue = filled(("long", 2000, 0.0))
    now = 0.0
    for number in range(1000):
        now += 0.5
        queue.add(f"short {number}", 30, now)
        if queue.pop(now) == "long":
            break
    assert now <= 11


def test_removing_by_identity_and_counting():
    first, second = object(), object()
    queue = filled((first, 10, 0.0), (second, 20, 0.0))
    assert len(queue) == 2
    assert queue.remove(first)
    assert not queue.remove(first)
    assert len(queue) == 1


@pytest.mark.parametrize(
    ("rate", "decoding", "tokens"),
    [
        (0.0, True, 32),
        (100.0, True, 32),
        (1000.0, True, 250),
        (50_000.0, True, 512),
        (0.0, False, 128),
        (100.0, False, 200),
        (50_000.0, False, 2048),
    ],
)
def test_pieces_take_a_set_time_within_bounds(rate, decoding, tokens):
    assert chunk_tokens(rate, decoding=decoding) == tokens


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
