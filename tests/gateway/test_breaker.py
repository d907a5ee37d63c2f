"""Workers that fail are left alone for a while, unless most would be."""

from __future__ import annotations

import random

import msgspec

from gateway.breaker import Breakers, BreakerState
from tests.gateway.test_routing import view

A, B, C = view("a"), view("b"), view("c")


def breakers() -> Breakers:
    return Breakers(random.Random(1))


def failed(times: int, now: float = 0.0) -> Breakers:
    found = breakers()
    for _ in range(times):
        found.failed(A, now)
    return found


def test_three_failures_in_a_row_open_it():
    assert failed(2).state(A, 0.0) is BreakerState.CLOSED
    assert failed(3).state(A, 0.0) is BreakerState.OPEN
    assert failed(3).sound([A, B], 0.0) == [B]


def test_a_success_begins_the_row_anew():
    found = failed(2)
    found.succeeded(A, 0.0)
    found.failed(A, 0.0)
    found.failed(A, 0.0)
    assert found.state(A, 0.0) is BreakerState.CLOSED


def test_half_of_ten_in_half_a_minute_open_it():
    found = breakers()
    for number in range(5):
        found.succeeded(A, float(number))
        found.failed(A, float(number))
    assert found.state(A, 4.0) is BreakerState.OPEN
    spread = breakers()
    for number in range(5):
        spread.succeeded(A, number * 10.0)
        spread.failed(A, number * 10.0)
    assert spread.state(A, 40.0) is BreakerState.CLOSED


def test_a_lost_connection_opens_it_at_once_and_a_new_process_closes_it():
    found = breakers()
    found.lost(A, 0.0)
    assert found.state(A, 1.0) is BreakerState.OPEN
    assert found.state(msgspec.structs.replace(A, incarnation="2"), 1.0) is BreakerState.CLOSED


def test_after_the_pause_one_may_try():
    found = failed(3)
    assert found.sound([A, B], 7.0) == [A, B]
    found.sent(A, 7.0)
    assert found.sound([A, B], 7.0) == [B]
    found.succeeded(A, 8.0)
    assert found.state(A, 8.0) is BreakerState.CLOSED


def test_a_rejected_probe_says_nothing():
    found = failed(3)
    found.sent(A, 7.0)
    found.unsent(A)
    assert found.sound([A, B], 7.0) == [A, B]


def test_the_pause_doubles_up_to_a_minute():
    found, now, pauses = failed(3), 0.0, []
    for _ in range(6):
        begun = now
        while found.state(A, now) is BreakerState.OPEN:
            now += 0.1
        pauses.append(now - begun)
        found.sent(A, now)
        found.failed(A, now)
    for pause, expected in zip(pauses, (5, 10, 20, 40, 60, 60), strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected + 0.2


def test_failures_of_what_was_under_way_do_not_lengthen_the_pause():
    found = failed(8)
    assert found.state(A, 6.1) is BreakerState.HALF_OPEN


def test_where_most_would_be_left_out_nobody_is():
    found = failed(3)
    for _ in range(3):
        found.failed(B, 0.0)
    assert found.sound([A, B, C], 0.0) == [A, B, C]
    assert found.sound([A], 0.0) == [A]
    assert found.sound([A, C], 0.0) == [C]


def test_those_of_forgotten_workers_are_dropped():
    found = failed(3)
    found.forget(["b"])
    assert found.state(A, 0.0) is BreakerState.CLOSED
