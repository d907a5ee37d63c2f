"""What is counted of requests while they pass."""

from __future__ import annotations

from gateway.spread import Spread
from gateway.tally import Tally
from tests.gateway.fleet import Fleet


def _count(spread: Spread) -> float:
    return spread.buckets()[-1][1]


def test_a_request_counts_once_when_a_worker_begins_it_with_what_it_waited_before():
    fleet = Fleet()
    fleet.join("a")
    fleet.ask("1", priority="interactive")
    fleet.ask("2", priority="batch")
    fleet.start(b"a")
    fleet.pass_time(3, beating=(b"a",))
    fleet.finish(b"a")
    fleet.start(b"a")
    tally = fleet.dispatcher.tally
    assert (_count(tally.queued("m", "interactive")), tally.queued("m", "interactive").sum) == (1, 0.0)
    waited = tally.queued("m", "batch")
    assert (_count(waited), 2.9 <= waited.sum <= 3.1) == (1, True)
    fleet.join("b")
    fleet.lose(b"a")
    fleet.start(b"b")
    assert fleet.at(b"b") == ["2"]
    assert _count(tally.queued("m", "batch")) == 1


def test_a_model_that_nobody_serves_any_more_is_forgotten():
    tally = Tally()
    for model in ("m", "n"):
        tally.gaps(model).add(1.0)
        tally.queued(model, "normal").add(1.0)
        tally.beginnings[model, True] += 1
    tally.forget("m")
    assert (_count(tally.gaps("m")), _count(tally.queued("m", "normal")), tally.beginnings["m", True]) == (
        0,
        0,
        0,
    )
    assert (_count(tally.gaps("n")), _count(tally.queued("n", "normal")), tally.beginnings["n", True]) == (
        1,
        1,
        1,
    )
