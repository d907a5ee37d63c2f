import pytest

from protocol.states import ExitCode, TransitionError, WorkerState
from worker.life import Life


def test_the_states_follow_the_table():
    life = Life()
    for state in (WorkerState.LOADING, WorkerState.WARMING, WorkerState.READY, WorkerState.DRAINING):
        life.enter(state)
    with pytest.raises(TransitionError):
        life.enter(WorkerState.WARMING)
    assert life.state is WorkerState.DRAINING


def test_the_first_reason_to_leave_counts():
    life = Life()
    assert not life.leaving
    life.leave(ExitCode.RESTART, "asked")
    life.leave(ExitCode.OK, "SIGTERM")
    assert (life.exit_code, life.detail, life.last_state) == (ExitCode.RESTART, "asked", WorkerState.STOPPED)


@pytest.mark.parametrize("worse", [ExitCode.FAULT, ExitCode.MISCONFIGURED])
def test_a_fault_stands_whatever_came_before_or_comes_after(worse):
    life = Life()
    life.leave(ExitCode.OK, "SIGTERM")
    life.leave(worse, "broken")
    life.leave(ExitCode.OK, "SIGTERM")
    assert (life.exit_code, life.detail, life.last_state) == (worse, "broken", WorkerState.FAILED)
