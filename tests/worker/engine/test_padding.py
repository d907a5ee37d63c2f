"""Which texts are computed together: each once, the oldest first, with little padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.padding import FEW_TOKENS, MOST_TOKENS, bucket, next_batch

LENGTHS = st.lists(st.integers(1, 2 * MOST_TOKENS), min_size=1, max_size=60)


@given(st.integers(1, 100_000))
def test_a_class_is_little_longer_than_its_members(length: int):
    assert length <= bucket(length) <= max(length + 15, length * 5 // 4 + 1)
    assert bucket(bucket(length)) == bucket(length)


@given(st.integers(1, 10_000))
def test_longer_texts_are_in_no_lower_class(length: int):
    assert bucket(length) <= bucket(length + 1)


@given(LENGTHS)
def test_all_texts_are_computed_once_and_each_batch_has_the_oldest(lengths: list[int]):
    waiting = list(range(len(lengths)))
    done: list[int] = []
    while waiting:
        chosen = [waiting[place] for place in next_batch([lengths[each] for each in waiting])]
        assert chosen[0] == waiting[0] or lengths[waiting[0]] in [lengths[each] for each in chosen]
        assert waiting[0] in chosen
        done += chosen
        waiting = [each for each in waiting if each not in chosen]
    assert sorted(done) == list(range(len(lengths)))


@given(LENGTHS)
def test_a_batch_is_bounded_and_pads_little(lengths: list[int]):
    chosen = [lengths[place] for place in next_batch(lengths)]
    padded = max(chosen) * len(chosen)
    assert len(chosen) == 1 or padded <= MOST_TOKENS
    if padded > FEW_TOKENS:
        assert len({bucket(length) for length in chosen}) == 1


def test_what_is_little_is_filled_up_with_the_next_shorter_ones():
    assert next_batch([30, 5, 18, 5]) == [0, 2, 1, 3]
    assert next_batch([500, 5, 5]) == [0]
    assert next_batch([5, 500, 6]) == [0, 2]
