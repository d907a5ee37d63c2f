"""The line of one model: order, room, time."""

from __future__ import annotations

import random

from gateway.queue import MAX_BYTES, Line, Ticket, max_requests, retry_after_s, time_limit_s
from protocol.config import QueueConfig
from tests.gateway.test_routing import view


def ticket(number: int, size: int = 1, expires_at: float = 10.0) -> Ticket:
    return Ticket(number, f"r{number}", size, expires_at)


def test_first_come_first_served_and_who_returns_stands_where_it_stood():
    line = Line()
    for number in (1, 2, 3):
        line.enter(ticket(number))
    assert line.head == ticket(1)
    line.leave(ticket(1))
    line.enter(ticket(4))
    line.enter(ticket(1))
    assert [t.number for t in line.expired(99)] == [1, 2, 3, 4]


def test_leaving_twice_is_leaving_once():
    line = Line()
    line.enter(ticket(1, size=5))
    line.leave(ticket(1, size=5))
    line.leave(ticket(1, size=5))
    assert len(line) == 0
    assert line.head is None
    assert line.has_room(MAX_BYTES, 1)


def test_room_is_bounded_in_number_and_bytes():
    line = Line()
    line.enter(ticket(1, size=MAX_BYTES - 10))
    assert line.has_room(10, 2)
    assert not line.has_room(11, 2)
    assert not line.has_room(1, 1)


def test_only_those_whose_time_is_over_expire():
    line = Line()
    line.enter(ticket(1, expires_at=5.0))
    line.enter(ticket(2, expires_at=50.0))
    assert [t.number for t in line.expired(5.0)] == [1]


def test_the_length_follows_the_slots_unless_it_is_set():
    assert max_requests(QueueConfig(), 0) == 16
    assert max_requests(QueueConfig(), 25) == 50
    assert max_requests(QueueConfig(), 9999) == 1024
    assert max_requests(QueueConfig(max_requests=0), 25) == 0


def test_the_time_limit_is_at_least_twice_the_service_time():
    assert time_limit_s(QueueConfig(timeout_s=60), [view("a", measured_s=10)]) == 60
    assert time_limit_s(QueueConfig(timeout_s=60), [view("a", measured_s=40)]) == 80


def test_retry_after_is_the_time_in_which_the_line_empties():
    rng = random.Random(1)
    workers = [view("a", slots=2, measured_s=4.0)]  # one request in two seconds
    assert all(8 <= retry_after_s(4, workers, rng) <= 12 for _ in range(50))
    assert len({retry_after_s(4, workers, rng) for _ in range(50)}) > 10
    assert all(24 <= retry_after_s(1000, workers, rng) <= 36 for _ in range(50))
    assert all(0.8 <= retry_after_s(0, [view("a", slots=100)], rng) <= 1.2 for _ in range(50))
    assert retry_after_s(5, [], rng) > 0
