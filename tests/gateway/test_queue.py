"""The line of one model: order, room, time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.needs import Needs
from gateway.queue import MAX_BYTES, Line, Ticket, max_requests, retry_after_s, time_limit_s
from protocol.config import QueueConfig
from tests.gateway.test_routing import view

INTERACTIVE, NORMAL, BATCH = 0, 1, 2


def ticket(number: int, size: int = 1, expires_at: float = 10.0, **fields: object) -> Ticket:
    return Ticket(number, f"r{number}", size, expires_at, **fields)  # type: ignore[arg-type]


def line_of(*tickets: Ticket) -> Line:
    line = Line()
    for one in tickets:
        line.arrive(one.tenant)
        line.enter(one)
    return line


def head(line: Line) -> Ticket | None:
    return next(line.in_turn(), None)


def numbers(line: Line, *unmet: Needs) -> list[int]:
    return [one.number for one in line.in_turn(unmet)]


def served(line: Line) -> list[int]:
    """Their numbers in the order in which they are next, each charged as it goes."""
    order = []
    while (first := head(line)) is not None:
        line.leave(first)
        line.accounts.charge(first.tenant)
        order.append(first.number)
    return order


def test_first_come_first_served_and_who_returns_stands_where_it_stood():
    line = line_of(*map(ticket, (1, 2, 3)))
    assert head(line) == ticket(1)
    line.leave(ticket(1))
    line.enter(ticket(4))
    line.enter(ticket(1))
    assert served(line) == [1, 2, 3, 4]


def test_behind_the_head_keys_follow_one_another_and_who_returns_stands_before_all():
    line = line_of(
        *(ticket(n, tenant="a") for n in (1, 2, 3)), ticket(4, tenant="b"), ticket(5, returns=True)
    )
    line.accounts.charge("a")
    assert numbers(line) == [5, 4, 1, 2, 3]
    assert numbers(Line()) == []


RESUMES, SEES, ONLY_A, ONLY_B = Needs(resumes=True), Needs(sees=True), Needs("a"), Needs("b")


@pytest.mark.parametrize(
    ("unmet", "order"),
    [
        ((), [5, 1, 2, 3, 4, 6]),
        ((RESUMES,), [1, 2, 3, 4, 6]),
        ((ONLY_A,), [5, 2, 3, 6]),
        ((ONLY_A, RESUMES, SEES), [2, 6]),
        ((ONLY_B,), [5, 1, 2, 3, 4, 6]),
        ((Needs(),), []),
    ],
)
def test_who_needs_what_nobody_has_is_passed_and_the_others_keep_their_order(unmet, order):
    needs = {1: ONLY_A, 2: Needs(), 3: SEES, 4: ONLY_A, 5: RESUMES, 6: Needs()}
    line = line_of(*(ticket(n, needs=one, returns=one is RESUMES) for n, one in needs.items()))
    assert numbers(line, *unmet) == order


def test_what_is_found_to_be_unmet_on_the_way_is_passed_from_there():
    line = line_of(*(ticket(n, needs=ONLY_A) for n in range(1, 1000)), ticket(1000), ticket(1001))
    unmet: set[Needs] = set()
    looked_at = []
    for one in line.in_turn(unmet):
        looked_at.append(one.number)
        unmet.add(one.needs)
    assert looked_at == [1, 1000]


NEEDS = st.builds(Needs, st.sampled_from(["", "a", "b"]), st.booleans(), st.booleans())
NEEDY = st.lists(st.tuples(NEEDS, st.sampled_from("xyz"), st.integers(0, 2), st.booleans()), max_size=30).map(
    lambda rows: [
        ticket(n, needs=needs, tenant=tenant, level=level, returns=returns)
        for n, (needs, tenant, level, returns) in enumerate(rows)
    ]
)


@given(NEEDY, st.sets(NEEDS, max_size=4), st.lists(st.sampled_from("xyz"), max_size=9))
def test_the_first_in_turn_whom_a_worker_can_take_is_found_whoever_stands_before(tickets, met, charged):
    """`met`: what a free worker has."""
    line = line_of(*tickets)
    for tenant in charged:
        line.accounts.charge(tenant)
    able = [one for one in line.in_turn() if any(has.imply(one.needs) for has in met)]
    unmet: set[Needs] = set()
    found = None
    for one in line.in_turn(unmet):
        if any(has.imply(one.needs) for has in met):
            found = one
            break
        unmet.add(one.needs)
    assert found == (able[0] if able else None)


@given(NEEDY, st.sets(NEEDS, max_size=4))
def test_equals_never_pass_one_another(tickets, unmet):
    last: dict[tuple[object, ...], int] = {}
    for one in line_of(*tickets).in_turn(unmet):
        kind = (one.returns, one.level, one.tenant)
        assert one.number > last.get(kind, -1)
        last[kind] = one.number


@given(NEEDY, NEEDS)
def test_somebody_has_rivals_among_those_who_need_no_more(tickets, needs):
    assert line_of(*tickets).has_rivals(needs) == any(needs.imply(one.needs) for one in tickets)


def test_keys_take_turns_whatever_one_of_them_holds():
    greedy = [ticket(number, tenant="greedy") for number in range(1, 6)]
    line = line_of(*greedy, ticket(6, tenant="a"), ticket(7, tenant="b"), ticket(8, tenant="a"))
    assert served(line) == [1, 6, 7, 2, 8, 3, 4, 5]


@pytest.mark.parametrize(
    ("levels", "order"),
    [
        ((BATCH, NORMAL, INTERACTIVE), [3, 2, 1]),
        ((INTERACTIVE, BATCH, INTERACTIVE), [1, 3, 2]),
        ((NORMAL, NORMAL, NORMAL), [1, 2, 3]),
    ],
)
def test_the_first_class_is_served_first(levels, order):
    assert served(line_of(*(ticket(n, level=level) for n, level in enumerate(levels, 1)))) == order


def test_the_class_comes_before_fairness():
    line = line_of(ticket(1, level=INTERACTIVE, tenant="a"), ticket(2, level=INTERACTIVE, tenant="a"))
    line.arrive("b")
    line.enter(ticket(3, level=BATCH, tenant="b"))
    assert served(line) == [1, 2, 3]


def test_who_waited_half_its_time_counts_as_of_the_first_class():
    line = line_of(ticket(1, level=BATCH, hastens_at=300.0), ticket(2, level=INTERACTIVE, hastens_at=330.0))
    line.pass_time(299.0, stands=False)
    assert numbers(line) == [2, 1]
    line.pass_time(300.0, stands=False)
    assert numbers(line) == [1, 2]


def test_who_was_at_a_worker_comes_before_all():
    line = line_of(ticket(1, level=INTERACTIVE), ticket(2, level=BATCH, returns=True, tenant="b"))
    assert served(line) == [2, 1]


def test_leaving_twice_is_leaving_once():
    line = line_of(ticket(1, size=5))
    line.leave(ticket(1, size=5))
    line.leave(ticket(1, size=5))
    assert len(line) == 0
    assert head(line) is None
    assert line.displaced(ticket(2, size=MAX_BYTES), 1) == []


def test_a_full_line_refuses_the_newest_of_the_key_that_holds_most():
    line = line_of(*(ticket(n, tenant="greedy") for n in (1, 2, 3)), ticket(4, tenant="a"))
    assert line.displaced(ticket(5, tenant="b"), 4) == [ticket(3, tenant="greedy")]
    assert line.displaced(ticket(5, tenant="a"), 4) == [ticket(3, tenant="greedy")]
    assert line.displaced(ticket(5, tenant="greedy"), 4) is None
    assert line.displaced(ticket(5, tenant="b"), 5) == []


def test_of_a_keys_own_requests_the_last_class_goes_first():
    line = line_of(ticket(1, level=BATCH), ticket(2, level=NORMAL))
    assert line.displaced(ticket(3, level=INTERACTIVE), 2) == [ticket(1, level=BATCH)]
    assert line.displaced(ticket(3, level=BATCH), 2) is None


def test_a_line_of_no_length_takes_nobody():
    assert Line().displaced(ticket(1), 0) is None


def test_the_bytes_are_bounded_too_and_whose_are_most_leaves():
    line = line_of(ticket(1, size=MAX_BYTES - 10, tenant="large"), ticket(2, size=5, tenant="a"))
    assert line.displaced(ticket(3, size=5, tenant="b"), 9) == []
    assert line.displaced(ticket(3, size=6, tenant="b"), 9) == [ticket(1, MAX_BYTES - 10, tenant="large")]
    assert line.displaced(ticket(3, size=6, tenant="large"), 9) is None


def test_who_is_exempt_takes_no_room_and_gives_none():
    line = line_of(ticket(1, counts=False), ticket(2, counts=False, returns=True))
    assert line.displaced(ticket(3), 1) == []
    line.enter(ticket(3))
    assert line.displaced(ticket(4), 1) is None


TICKETS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from((INTERACTIVE, NORMAL, BATCH)), st.booleans()),
    max_size=20,
)


@given(TICKETS)
def test_somebody_is_next_while_anybody_waits_and_each_is_once(kinds):
    line = line_of(*(ticket(n, tenant=t, level=v, returns=r) for n, (t, v, r) in enumerate(kinds)))
    assert sorted(served(line)) == list(range(len(kinds)))
    assert (len(line), line.since) == (0, None)


@given(TICKETS)
def test_within_a_key_and_class_the_order_is_that_of_coming(kinds):
    line = line_of(*(ticket(n, tenant=t, level=v) for n, (t, v, _r) in enumerate(kinds)))
    order = served(line)
    for kind in {kind[:2] for kind in kinds}:
        numbers = [number for number in order if kinds[number][:2] == kind]
        assert numbers == sorted(numbers)


@given(TICKETS, st.sampled_from("abcd"), st.integers(1, 8))
def test_a_full_line_never_refuses_a_key_for_one_that_holds_more(kinds, newcomer, most):
    tickets = [ticket(n, tenant=t, level=v) for n, (t, v, _r) in enumerate(kinds[:most])]
    line = line_of(*tickets)
    mine = sum(t.tenant == newcomer for t in tickets) + 1
    displaced = line.displaced(ticket(99, tenant=newcomer, level=BATCH), most)
    if displaced is None:
        assert all(sum(t.tenant == other.tenant for t in tickets) <= mine for other in tickets)
    else:
        for victim in displaced:
            assert sum(t.tenant == victim.tenant for t in tickets) >= mine - (victim.tenant == newcomer)


def test_only_those_whose_time_is_over_expire():
    line = line_of(ticket(1, expires_at=5.0), ticket(2, expires_at=50.0))
    assert [t.number for t in line.expired(5.0)] == [1]


def test_the_length_follows_the_slots_unless_it_is_set():
    assert max_requests(QueueConfig(), 0) == 16
    assert max_requests(QueueConfig(), 25) == 50
    assert max_requests(QueueConfig(), 9999) == 1024
    assert max_requests(QueueConfig(max_requests=0), 25) == 0


def test_the_time_limit_is_at_least_twice_the_service_time():
    assert time_limit_s(QueueConfig(timeout_s=60), [view("a", measured_s=10)]) == 60
    assert time_limit_s(QueueConfig(timeout_s=60), [view("a", measured_s=40)]) == 80
    assert time_limit_s(QueueConfig(), [view("a", measured_s=10)], BATCH) == 600


def test_retry_after_is_the_time_in_which_the_line_empties():
    rng = random.Random(1)
    workers = [view("a", slots=2, measured_s=4.0)]  # one request in two seconds
    assert all(8 <= retry_after_s(4, workers, rng) <= 12 for _ in range(50))
    assert len({retry_after_s(4, workers, rng) for _ in range(50)}) > 10
    assert all(24 <= retry_after_s(1000, workers, rng) <= 36 for _ in range(50))
    assert all(0.8 <= retry_after_s(0, [view("a", slots=100)], rng) <= 1.2 for _ in range(50))
    assert retry_after_s(5, [], rng) > 0
