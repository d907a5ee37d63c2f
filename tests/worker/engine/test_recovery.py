"""Who is to blame for failed steps."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.recovery import Recovery


def play(
    names: list[str], fails: Callable[[list[str]], bool], steps: int = 100
) -> tuple[set[str], Recovery[str]]:
    """Run until each got a token; `fails` tells of a step by its rows. Who was blamed, and the record."""
    record: Recovery[str] = Recovery()
    waiting, rows, blamed = list(names), list[str](), set[str]()
    for _ in range(steps):
        for name in list(waiting):
            if record.admits(name, rows):
                waiting.remove(name)
                rows.append(name)
        if not rows or record.given_up:
            break
        if fails(rows):
            culprit = record.failed(rows)
            waiting = [name for name in rows + waiting if name != culprit]
            blamed |= {culprit} if culprit else set()
            rows = []
        else:
            for name in rows:
                record.progressed(name)
            rows = []  # answered
    return blamed, record


def test_one_fault_blames_nobody():
    faults = iter([True])
    blamed, record = play(["a", "b"], lambda _rows: next(faults, False))
    assert (blamed, record.given_up) == (set(), False)


def test_a_row_that_fails_again_and_again_is_ended_alone():
    blamed, record = play(["a", "bad", "c"], lambda rows: "bad" in rows)
    assert (blamed, record.given_up) == ({"bad"}, False)


def test_a_lone_row_is_tried_twice():
    record: Recovery[str] = Recovery()
    assert record.failed(["a"]) is None
    assert record.failed(["a"]) == "a"
    assert not record.given_up


def test_a_broken_engine_is_given_up_after_four_steps():
    count = []

    def fails(rows):
        count.append(rows)
        return True

    _blamed, record = play(["a", "b", "c", "d"], fails)
    assert record.given_up
    assert len(count) == 4


def test_a_broken_engine_is_given_up_although_requests_come_one_at_a_time():
    record: Recovery[str] = Recovery()
    for name in ("a", "b"):
        record.failed([name])
        record.failed([name])
    assert record.given_up


def test_while_there_are_suspects_newcomers_wait():
    record: Recovery[str] = Recovery()
    record.failed(["a", "b"])
    record.failed(["a", "b"])
    assert not record.admits("new", [])
    assert record.admits("a", [])
    assert not record.admits("b", ["a"])
    record.progressed("a")
    assert record.admits("b", ["a"])


def test_one_that_passed_its_trial_is_not_blamed_for_the_next_suspect():
    record: Recovery[str] = Recovery()
    record.failed(["a", "bad"])
    record.failed(["a", "bad"])
    record.progressed("a")
    assert record.failed(["a", "bad"]) == "bad"


def test_a_suspect_that_left_is_not_waited_for():
    record: Recovery[str] = Recovery()
    record.failed(["a", "b"])
    record.failed(["a", "b"])
    record.left("a")
    record.left("b")
    assert record.admits("new", [])


@given(st.sets(st.integers(0, 9), max_size=1), st.integers(1, 10))
def test_exactly_the_bad_one_is_blamed(bad, count):
    names = [str(number) for number in range(count)]
    wrong = {str(number) for number in bad} & set(names)
    blamed, record = play(names, lambda rows: bool(wrong & set(rows)))
    assert blamed == wrong
    assert not record.given_up


@given(st.sets(st.integers(0, 9)), st.integers(1, 10))
def test_it_always_comes_to_an_end_and_a_good_one_is_never_blamed(bad, count):
    names = [str(number) for number in range(count)]
    wrong = {str(number) for number in bad} & set(names)
    blamed, record = play(names, lambda rows: bool(wrong & set(rows)), steps=60)
    assert blamed <= wrong
    assert record.given_up or blamed == wrong
