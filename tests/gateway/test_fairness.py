"""Fair between keys: nobody starves, a greedy key harms no other, nobody saves up turns."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fairness import Accounts, weighted
from gateway.queue import Line, Ticket

SERVICE_S = 1.0


def test_a_token_that_is_written_counts_twice():
    assert weighted(prompt_tokens=10, completion_tokens=5) == 20


def test_who_comes_back_begins_where_the_others_stand():
    accounts = Accounts()
    for _ in range(50):
        accounts.settle("busy", accounts.charge("busy"), 100)
    accounts.arrive("idle", ["busy"])
    assert accounts.standing("idle") == accounts.standing("busy") == 5000
    accounts.arrive("idle", ["idle", "busy"])
    accounts.arrive("alone", [])
    assert accounts.standing("alone") > 0, "as the one who was served last stood"


def test_what_others_have_under_way_gives_a_newcomer_their_place_in_turn():
    accounts = Accounts()
    for _ in range(3):
        accounts.charge("busy")
    accounts.arrive("new", ["busy"])
    assert accounts.standing("new") < accounts.standing("busy")


def test_what_a_request_took_is_settled_and_what_was_not_taken_is_given_back():
    accounts = Accounts()
    charged = accounts.charge("a")
    accounts.settle("a", charged, 40)
    assert accounts.standing("a") == 40
    assert accounts.charge("a") == 40, "by what its requests usually took"
    accounts.refund("a", 40)
    assert accounts.standing("a") == 40


@dataclass
class World:
    """Slots that serve one line. Time jumps from one end of a request to the next arrival or end."""

    slots: int
    line: Line = field(default_factory=Line)
    now: float = 0.0
    running: list[tuple[float, int, str, float, float]] = field(default_factory=list)
    """End, number, key, charge and weighted tokens of each request at a slot."""
    waits: dict[str, list[float]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    costs: dict[int, float] = field(default_factory=dict)
    most: int = 1000
    number: int = 0
    idle_beside_waiting: bool = False

    def come(self, tenant: str, cost: float = SERVICE_S) -> None:
        self.number += 1
        ticket = Ticket(self.number, str(self.number), 1, float("inf"), self.now, tenant)
        displaced = self.line.displaced(ticket, self.most)
        if displaced is None:
            self.refused.append(tenant)
            return
        for victim in displaced:
            self.line.leave(victim)
            self.refused.append(victim.tenant)
        self.costs[self.number] = cost
        self.line.arrive(tenant)
        self.line.enter(ticket)
        self.serve()

    def serve(self) -> None:
        while len(self.running) < self.slots and (head := next(self.line.in_turn(), None)) is not None:
            self.line.leave(head)
            charged = self.line.accounts.charge(head.tenant)
            took = self.costs[head.number]
            heapq.heappush(self.running, (self.now + took, head.number, head.tenant, charged, 100 * took))
            self.waits.setdefault(head.tenant, []).append(self.now - head.since)
            self.order.append(head.tenant)
        self.idle_beside_waiting |= len(self.running) < self.slots and len(self.line) > 0

    def until(self, time: float) -> None:
        while self.running and self.running[0][0] <= time:
            self.now, _number, tenant, charged, took = heapq.heappop(self.running)
            self.line.accounts.settle(tenant, charged, took)
            self.serve()
        self.now = max(self.now, time)


def p95(waits: list[float]) -> float:
    return sorted(waits)[int(0.95 * (len(waits) - 1))]


@pytest.mark.parametrize("slots", [1, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_a_greedy_key_pushes_no_others_wait_above_two_service_times_nor_gets_it_refused(slots, seed):
    rng = random.Random(seed)
    world = World(slots, most=max(16, 2 * slots))
    arrivals = [(rng.uniform(0, 300), "greedy") for _ in range(3 * 300 * slots)]
    # The other asks for a tenth of what there is, not for two things at once: it would wait for itself.
    gap_s = 10 * SERVICE_S / slots
    arrivals += [(gap_s * (number + rng.uniform(0, 0.7)), "light") for number in range(30 * slots)]
    for at, tenant in sorted(arrivals):
        world.until(at)
        world.come(tenant, rng.uniform(0.5, 1.5) * SERVICE_S)
    assert p95(world.waits["light"]) <= 2 * SERVICE_S
    assert "light" not in world.refused
    assert world.refused.count("greedy") > 300 * slots
    assert not world.idle_beside_waiting


def test_three_times_as_many_keys_as_slots_share_alike_whatever_the_length_of_their_requests():
    rng = random.Random(1)
    world = World(slots=2, most=10_000)
    lengths = {"short": 0.2, "middle": 1.0, "long": 5.0}
    for step in range(3000):
        world.until(step * 0.1)
        for tenant, length in lengths.items():
            if step * 0.1 < 280 and rng.random() < 0.3 / length:
                world.come(tenant, length)
    world.until(300)
    seconds = {tenant: world.order.count(tenant) * length for tenant, length in lengths.items()}
    assert max(seconds.values()) < 1.2 * min(seconds.values()), seconds


@settings(max_examples=60)
@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 20), st.sampled_from("abcd"), st.floats(0.1, 5.0)), min_size=1, max_size=120
    ),
    slots=st.integers(1, 4),
)
def test_no_key_starves_and_no_slot_idles_while_anybody_waits(arrivals, slots):
    world = World(slots)
    for at, tenant, cost in sorted(arrivals):
        world.until(at)
        world.come(tenant, cost)
    world.until(10_000)
    assert len(world.order) == len(arrivals)
    assert not world.idle_beside_waiting


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 30))
def test_new_keys_that_come_without_end_do_not_keep_one_waiting(already, newcomers):
    line = Line()
    line.arrive("old")
    line.enter(Ticket(0, "0", 1, 1e9, tenant="old"))
    for number in range(1, already + newcomers):
        line.arrive(f"new-{number}")
        line.enter(Ticket(number, str(number), 1, 1e9, tenant=f"new-{number}"))
        if number >= already:
            head = next(line.in_turn(), None)
            assert head is not None
            if head.tenant == "old":
                return
            line.leave(head)
            line.accounts.charge(head.tenant)
    pytest.fail("it was never served")
