"""Requests and the workers that know how they begin: kept to, waited for a while, and passed meanwhile."""

from __future__ import annotations

import pytest

from gateway.affinity import key_of, ranked
from protocol.messages import Generate, Heartbeat, Started
from protocol.values import SamplingParams
from tests.gateway.fleet import Fleet

RATE = 1000.0
SIZE = 4000
"""Bytes of a prompt that takes a second to compute, and is worth two of waiting."""


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet()
    fleet.join(*names, can_resume=True)
    for name in names:
        fleet.receive(name.encode(), Heartbeat(state="ready", prefill_tokens_per_s=RATE))
    return fleet


def order(fleet: Fleet, cache_key: str = "k") -> list[bytes]:
    """The workers of a key, its own two first."""
    request = Generate(
        request_id="", attempt=0, model="m", sampling=SamplingParams(), seed=1, cache_key=cache_key
    )
    key = key_of(request)
    assert key is not None
    return [view.connection for view in ranked(key, fleet.registry.views())]


def begun(fleet: Fleet, connection: bytes, cached: int) -> None:
    """Its worker has found so much of the last request's beginning, and answers it."""
    request = fleet.last(connection)
    fleet.accept(connection)
    fleet.receive(
        connection,
        Started(
            request_id=request.request_id, attempt=request.attempt, prompt_tokens=1000, cached_tokens=cached
        ),
    )
    fleet.finish(connection)


def warm(fleet: Fleet) -> tuple[bytes, bytes, bytes]:
    """A cache of the model has found something; the key's own two are busy, and one is free."""
    first, second, third = order(fleet)
    fleet.ask("warm", cache_key="k", size=SIZE)
    begun(fleet, first if fleet.at(first) else second, cached=900)
    for name in ("one", "two"):
        fleet.ask(name, cache_key="k", size=SIZE)
    for connection in (first, second):
        fleet.accept(connection)
    assert fleet.at(third) == []
    return first, second, third


def wait(fleet: Fleet, seconds: float) -> None:
    fleet.now += seconds
    for connection in fleet.registry.connections():
        view = fleet.registry.at(connection)
        assert view is not None
        beat = Heartbeat(state="ready", load=view.load, prefill_tokens_per_s=RATE)
        fleet.receive(connection, beat)
    fleet.dispatcher.tick(fleet.now)


def test_one_of_its_own_workers_is_waited_for_while_that_is_worth_it():
    fleet = fleet_of("a", "b", "c")
    _first, _second, third = warm(fleet)
    fleet.ask("r", cache_key="k", size=SIZE)
    wait(fleet, 1.9)
    assert fleet.at(third) == []
    wait(fleet, 0.2)
    assert fleet.at(third) == ["r"]


def test_it_goes_to_its_own_worker_as_soon_as_that_is_free():
    fleet = fleet_of("a", "b", "c")
    first, _second, _third = warm(fleet)
    fleet.ask("r", cache_key="k", size=SIZE)
    begun(fleet, first, cached=900)
    assert fleet.at(first)[-1] == "r"


def test_others_pass_it_meanwhile_but_none_of_its_own_kind():
    fleet = fleet_of("a", "b", "c")
    first, _second, third = warm(fleet)
    fleet.ask("r", cache_key="k", size=SIZE)
    fleet.ask("s", cache_key="k", size=SIZE)
    fleet.ask("short")
    assert fleet.at(third) == ["short"]
    assert fleet.counts == (3, 2)
    begun(fleet, first, cached=900)
    assert fleet.at(first)[-1] == "r"


def test_where_no_cache_ever_found_anything_nobody_waits():
    fleet = fleet_of("a", "b", "c")
    for name in ("one", "two", "three"):
        fleet.ask(name, cache_key="k", size=SIZE)
    assert fleet.counts == (3, 0)


def test_who_lost_its_worker_does_not_wait_for_a_certain_one():
    fleet = fleet_of("a", "b", "c")
    first, _second, third = warm(fleet)
    lost = fleet.at(first)[-1]
    fleet.lose(first)
    assert fleet.at(third) == [lost]


@pytest.mark.parametrize(("cached", "kept"), [(900, False), (100, True)])
def test_what_is_found_elsewhere_again_and_again_binds_to_no_worker(cached: int, kept: bool):
    fleet = fleet_of("a", "b", "c")
    first, second, third = warm(fleet)
    for number in range(4):
        fleet.ask(f"r{number}", cache_key="k", size=SIZE)
        wait(fleet, 2.1)
        assert fleet.at(third)[-1] == f"r{number}"
        begun(fleet, third, cached)
    for connection in (first, second):
        begun(fleet, connection, cached=900)
    for number in range(30):
        fleet.ask(f"s{number}", cache_key="k", size=SIZE)
        asked = next(c for c in (first, second, third) if fleet.at(c)[-1] == f"s{number}")
        begun(fleet, asked, cached=900)
    assert (len(fleet.at(third)) == 4) is kept
