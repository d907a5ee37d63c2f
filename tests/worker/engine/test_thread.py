"""The engine thread: order, faults, end."""

import threading

import pytest

from worker.engine.thread import EngineThread


@pytest.fixture
def faults():
    return []


@pytest.fixture
def thread(faults):
    thread = EngineThread("test", faults.append)
    yield thread
    thread.end()


def test_all_work_runs_on_one_thread_in_order(thread):
    seen = []
    for number in range(5):
        thread.post(lambda number=number: seen.append((number, threading.current_thread().name)))
    assert thread.call(lambda: list(seen)) == [(number, "test") for number in range(5)]


def test_what_work_raises_reaches_the_one_who_waits(thread, faults):
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    assert thread.call(lambda: "still there") == "still there"
    assert not faults


def test_a_fault_that_nobody_waits_for_is_reported_and_the_thread_goes_on(thread, faults):
    thread.post(lambda: 1 / 0)
    assert thread.call(lambda: 3) == 3
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


def test_it_steps_until_there_is_no_more_and_again_after_each_work(thread):
    left, steps, done = [3], [], threading.Event()

    def step():
        left[0] -= 1
        steps.append(left[0])
        if left[0] <= 0:
            done.set()
        return left[0] > 0

    thread.call(lambda: thread.drive(step))
    assert done.wait(5)
    assert steps == [2, 1, 0]
    done.clear()
    thread.post(lambda: left.__setitem__(0, 2))
    assert done.wait(5)
    assert thread.call(lambda: list(steps))[3:5] == [1, 0]


def test_a_step_that_raises_is_reported_once_and_not_tried_without_work(thread, faults):
    def step():
        raise RuntimeError("no")

    thread.call(lambda: thread.drive(step))
    thread.call(lambda: thread.drive(None))
    assert thread.call(lambda: len(faults)) == 1


def test_it_tells_how_long_it_has_been_at_one_thing(thread):
    assert thread.busy_s == 0
    let_go = threading.Event()
    begun = threading.Event()
    thread.post(begun.set)
    thread.post(lambda: let_go.wait(30))
    assert begun.wait(5)
    first = thread.busy_s
    assert 0 < first < thread.busy_s
    let_go.set()
    thread.call(lambda: None)
    assert thread.call(lambda: thread.busy_s) < 5


def test_ending_finishes_what_was_given_before():
    seen: list[object] = []
    thread = EngineThread("test", seen.append)
    thread.post(lambda: seen.append("done"))
    thread.end()
    assert seen == ["done"]
    assert "test" not in [other.name for other in threading.enumerate()]
