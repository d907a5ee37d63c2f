"""The simulation finds what it is for: with one rule of the product broken, some invariant fails."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from gateway.breaker import Breakers
from gateway.dispatch import Dispatcher
from gateway.flight import Flight
from gateway.flights import Flights
from gateway.queue import Line
from gateway.registry import Registry
from gateway.retry import RetryBudget
from gateway.waiting import WaitingRoom
from protocol.values import Capacity
from scripts.simulation import service
from scripts.simulation.fleet import simulate
from scripts.simulation.gateway import Gateway
from scripts.simulation.scenario import Faults, Scenario
from scripts.simulation.service import Make, Service
from scripts.simulation.traffic import Traffic
from scripts.simulation.worker import Worker

QUIET = Scenario(Traffic(15, count=15), workers=4, gateways=2)
BUSY = Scenario(Traffic(80, count=300), workers=4, gateways=2)
KILLED = Scenario(Traffic(20, count=200), workers=4, gateways=2, faults=Faults(kills=3))
DEAD = Scenario(Traffic(10, count=400), workers=4, gateways=2, faults=Faults(kills=3))
SICK = Scenario(Traffic(60, count=600), workers=4, gateways=1, queue=500, faults=Faults(sick=12))
ROLLING = Scenario(Traffic(15, count=150), workers=4, gateways=2, faults=Faults(rolling=True))
LONG = Scenario(Traffic(5, count=400), workers=1, gateways=1, queue=1000, make=Make(slots=1, waiting=0))


def found(scenario: Scenario) -> str:
    return "\n".join(simulate(scenario, "ours", 1).violations)


@pytest.mark.parametrize("scenario", [BUSY, KILLED, SICK, ROLLING, LONG])
def test_unbroken_all_is_well(scenario):
    assert found(scenario) == ""


def test_a_rejection_that_opens_breakers(monkeypatch):
    monkeypatch.setattr(Breakers, "unsent", lambda self, view: self.lost(view, 0.0))
    assert "only was busy" in found(BUSY)


def test_a_worker_that_takes_too_much(monkeypatch):
    monkeypatch.setattr(service, "Capacity", lambda **_limits: Capacity(max_num_seqs=8, max_waiting=9))
    assert "room for 9" in found(BUSY)


def test_tokens_that_come_twice(monkeypatch):
    tell = Service._tell

    def twice(self: Service, held: Any, made: int) -> None:
        tell(self, held, made)
        held.job.told = 0
        tell(self, held, made)

    monkeypatch.setattr(Service, "_tell", twice)
    assert "come after" in found(BUSY)


def test_an_answer_that_begins_anew_in_its_middle(monkeypatch):
    monkeypatch.setattr(Flight, "take", lambda *_arguments: None)
    assert "begins again at 0 of" in found(KILLED)


def test_a_line_without_an_end(monkeypatch):
    monkeypatch.setattr(Line, "displaced", lambda *_arguments: [])
    assert "which has room for 32" in found(BUSY)


def test_a_line_that_serves_the_last_first(monkeypatch):
    monkeypatch.setattr(Line, "in_turn", lambda self, _unmet: iter(sorted(self.all(), reverse=True)))
    assert "which came later" in found(BUSY)


def test_a_request_that_waits_for_ever(monkeypatch):
    monkeypatch.setattr(WaitingRoom, "expired", lambda *_arguments: [])
    assert "waited" in found(LONG)


def test_requests_that_are_lost_with_their_worker(monkeypatch):
    monkeypatch.setattr(Dispatcher, "lost", lambda *_arguments, **_named: None)
    assert "never ends" in found(KILLED)


def test_requests_that_are_kept_after_their_end(monkeypatch):
    monkeypatch.setattr(Flights, "take_out", lambda self, request_id: self._flights.get(request_id))
    assert "is left with" in found(QUIET)


def test_retries_beyond_the_budget(monkeypatch):
    monkeypatch.setattr(RetryBudget, "take", lambda *_arguments: True)
    assert "retries" in found(SICK)


def test_a_death_that_nobody_notices(monkeypatch):
    monkeypatch.setattr(Gateway, "disconnected", lambda *_arguments: None)
    monkeypatch.setattr(Registry, "silent", lambda *_arguments: [])
    monkeypatch.setattr(Worker, "start", functools.partialmethod(_start_once, Worker.start))
    assert "which is dead" in found(DEAD)


def _start_once(self: Worker, start: Any, load_s: float | None = None) -> None:
    if load_s is not None:
        start(self, load_s)


def test_a_drain_that_does_not_wait(monkeypatch):
    monkeypatch.setattr(
        Worker, "_exit_if_drained", lambda self: self._service.state == "draining" and self._exit()
    )
    assert "requests in hand" in found(ROLLING)


def test_a_view_that_never_learns(monkeypatch):
    monkeypatch.setattr(Registry, "heartbeat", lambda *_arguments: None)
    assert "sees" in found(BUSY)
