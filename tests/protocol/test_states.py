from __future__ import annotations

import itertools

import pytest

from protocol.states import WORKER_TRANSITIONS, TransitionError, WorkerState, move


def test_every_state_is_in_the_table():
    assert set(WORKER_TRANSITIONS) == set(WorkerState)


def test_the_ordinary_life_is_allowed():
    life = ["starting", "loading", "warming", "ready", "draining", "stopped"]
    for old, new in itertools.pairwise(life):
        assert move(WorkerState(old), WorkerState(new)) == new


def test_every_live_state_can_stop_or_fail():
    for state in set(WorkerState) - {WorkerState.STOPPED, WorkerState.FAILED, WorkerState.PARKED}:
        assert move(state, WorkerState.STOPPED) == WorkerState.STOPPED
        assert move(state, WorkerState.FAILED) == WorkerState.FAILED


def test_what_the_table_does_not_list_raises():
    with pytest.raises(TransitionError, match="cannot go from starting to ready"):
        move(WorkerState.STARTING, WorkerState.READY)
