"""Who gives up its cache, and when it comes back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.preemption import Preemption


def gone(*items: tuple[str, int], budget: int | None = None) -> Preemption[str]:
    """The record after these went, with so many tokens in hand."""
    record: Preemption[str] = Preemption(budget)
    for item, in_hand in items:
        record.went(item, in_hand)
    return record


@pytest.mark.parametrize(
    ("budget", "in_hand", "expected"), [(None, 10**9, False), (9, 9, False), (9, 10, True)]
)
def test_there_is_too_much_beyond_the_budget_only(budget, in_hand, expected):
    assert Preemption(budget).too_much(in_hand) is expected


def test_those_that_went_have_their_turn_before_all_others_and_the_oldest_first():
    record = gone(("c", 90), ("b", 60))
    assert [name for name in "abcd" if record.has_turn(name)] == ["b"]
    record.left("b")
    assert [name for name in "abcd" if record.has_turn(name)] == ["c"]
    record.left("c")
    assert all(record.has_turn(name) for name in "abcd")
    assert (record.count, record.anyone) == (2, False)


@pytest.mark.parametrize(
    ("tokens", "in_hand", "expected"),
    [(40, 50, True), (40, 51, False), (60, 40, False), (10**6, 0, True)],
)
def test_it_comes_back_to_clearly_less_than_it_left_or_alone(tokens, in_hand, expected):
    assert gone(("b", 100)).has_room("b", tokens, in_hand) is expected


@pytest.mark.parametrize(("in_hand", "expected"), [(0, True), (60, True), (61, False)])
def test_a_new_one_has_room_within_the_budget_or_alone(in_hand, expected):
    record: Preemption[str] = Preemption(100)
    assert record.has_room("new", 40, in_hand) is expected


def test_after_all_rows_were_lost_nobody_waits_for_memory():
    record = gone(("c", 90), ("b", 60))
    record.clear()
    assert all(record.has_turn(name) for name in "abc")
    assert record.count == 2


@dataclass(eq=False)
class Work:
    """A request: its prompt, how much of the answer it wants and has, how often it went."""

    prompt: int
    wanted: int
    has: int = 0
    went: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt + self.has


def steps_until_all_are_done(works: list[Work], slots: int, memory: int, budget: int | None) -> int:
    """With a memory that the policy does not know. Who is alone and does not fit is let through."""
    record: Preemption[Work] = Preemption(budget)
    waiting, rows, steps = list(works), list[Work](), 0
    while waiting or rows:
        steps += 1
        assert steps <= sum(work.wanted + 1 for work in works)  # somebody gets a token in each step
        while len(rows) > 1 and (
            record.too_much(sum(row.tokens + 1 for row in rows)) or sum(row.tokens for row in rows) > memory
        ):
            newest = max(rows, key=works.index)
            record.went(newest, sum(row.tokens for row in rows))
            newest.went += 1
            rows.remove(newest)
            waiting.append(newest)
        for work in list(waiting):
            in_hand = sum(row.tokens for row in rows)
            if len(rows) < slots and record.has_turn(work) and record.has_room(work, work.tokens, in_hand):
                record.left(work)
                waiting.remove(work)
                rows.append(work)
        for row in list(rows):
            row.has += 1
            if row.has >= row.wanted:
                rows.remove(row)
    return steps


@given(
    works=st.lists(st.builds(Work, st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=8),
    slots=st.integers(1, 6),
    memory=st.integers(1, 200),
    budget=st.none() | st.integers(1, 200),
)
def test_all_get_done_however_little_there_is_and_none_goes_more_often_than_others_end(
    works, slots, memory, budget
):
    steps_until_all_are_done(works, slots, memory, budget)
    assert all(work.has == work.wanted for work in works)
    assert all(work.went <= len(works) for work in works)
    assert works[0].went == 0  # the oldest always goes on
