"""How long a connection may stand still. The clock is a number."""

from __future__ import annotations

import pytest

from gateway.patience import KEEP_ALIVE_S, Patience, Phase, Standing
from protocol.config import LimitsConfig

LIMITS = LimitsConfig(body_timeout_s=60, stream_stall_s=30)


def overdue_at(*story: tuple[float, Standing]) -> list[float]:
    """When, of these looks at a connection made at 0, it was found to stand still for too long."""
    patience = Patience(LIMITS, 0.0)
    return [now for now, standing in story if patience.is_over(now, standing)]


def head(requests: int = 0, unsent: int = 0) -> Standing:
    return Standing(Phase.HEAD, requests, unsent)


def idle(requests: int = 1, unsent: int = 0) -> Standing:
    return Standing(Phase.IDLE, requests, unsent)


def answer(requests: int = 1, unsent: int = 0) -> Standing:
    return Standing(Phase.ANSWER, requests, unsent)


def test_the_first_request_has_to_begin_in_time():
    assert overdue_at((59, head()), (60, head())) == [60]


def test_a_head_has_to_be_complete_in_time_from_its_beginning():
    assert overdue_at((50, head()), (55, head(1)), (114, head(1)), (115, head(1))) == [115]


def test_an_idle_connection_is_kept_for_a_while():
    assert overdue_at((10, idle()), (10 + KEEP_ALIVE_S - 1, idle()), (10 + KEEP_ALIVE_S, idle())) == [85]


def test_each_request_begins_the_wait_anew():
    looks = [(float(now), idle(requests=now)) for now in range(1, 1000, 50)]
    assert overdue_at(*looks) == []


def test_an_answer_may_take_any_time():
    assert overdue_at((1, answer()), (100_000, answer())) == []


@pytest.mark.parametrize("phase", list(Phase))
def test_a_client_that_takes_nothing_is_given_up_in_every_phase(phase: Phase):
    stuck = Standing(phase, 1, 500)
    assert overdue_at((10, stuck), (39, stuck), (40, stuck)) == [40]


def test_a_client_that_takes_a_little_is_waited_for():
    looks = [(float(now), answer(unsent=100_000 - now)) for now in range(1, 300, 29)]
    assert overdue_at(*looks) == []


def test_more_to_send_is_no_progress_of_the_client():
    assert overdue_at((0, answer(unsent=10)), (15, answer(unsent=20)), (30, answer(unsent=30))) == [30]


def test_an_answer_that_begins_to_wait_for_its_client_has_the_whole_time():
    assert overdue_at((0, answer()), (100, answer(unsent=10)), (129, answer(unsent=10))) == []
