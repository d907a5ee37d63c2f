"""The tables: which fleets are compared under which policies, and what is told of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scripts.simulation.fleet import Outcome
from scripts.simulation.policies import OURS, P2C
from scripts.simulation.scenario import Faults, Scenario
from scripts.simulation.service import Make
from scripts.simulation.traffic import Traffic


@dataclass(frozen=True)
class Measure:
    """One column."""

    name: str
    of: Callable[[Outcome], float]
    digits: int = 0


WAIT = Measure("wait p99, ms", lambda outcome: 1000 * outcome.wait_p99)
FIRST = Measure("first token p99, ms", lambda outcome: 1000 * outcome.first_p99)
REFUSED = Measure("refused, %", lambda outcome: 100 * outcome.refused, 1)
LOST = Measure("lost, %", lambda outcome: 100 * outcome.lost, 2)
HITS = Measure("hits, %", lambda outcome: 100 * outcome.hits)
BUSY = Measure("busy, %", lambda outcome: 100 * outcome.busy, 1)
STARTS = Measure("starts", lambda outcome: outcome.starts, 2)


@dataclass(frozen=True)
class Table:
    """Scenarios by name, each under each policy."""

    title: str
    scenarios: Mapping[str, Scenario]
    measures: tuple[Measure, ...] = (WAIT, FIRST, REFUSED, BUSY)
    policies: tuple[str, ...] = ("random", "round robin", "least-loaded", P2C, OURS)
    plotted: Measure = WAIT
    least_hits: float = 0.0
    """The share of returning beginnings that ours has to find."""


_STALE = Make(beat_s=2.0)
_MIXED = Scenario(Traffic(85))
_DEEP = Scenario(Traffic(150, count=2000), workers=24, slow=0, make=Make(waiting=8))
_PREFIXES = Scenario(Traffic(45, prefixes=64))
_TALKS = Scenario(Traffic(40, turns=5, spread=0.5), make=Make(cache=40_000))


def _fast(workers: int, gateways: int, per_s: float, count: int) -> Scenario:
    return Scenario(Traffic(per_s, count=count), workers=workers, gateways=gateways)


def _mixed(per_s: float, prefixes: int, alike: float = 1.0) -> Scenario:
    return Scenario(Traffic(per_s, prefixes=prefixes, alike=alike))


TABLES: Mapping[str, Table] = {
    "stale": Table(
        "Stale views, deep queues: 24 equal workers of 8 slots and 8 places to wait, 4 gateways",
        {
            "heartbeat 0.5 s": _DEEP,
            "heartbeat 2 s": replace(_DEEP, make=replace(_DEEP.make, beat_s=2.0)),
        },
        policies=(
            "random",
            "round robin",
            "least-loaded, snapshot",
            "least-loaded",
            "P2C, snapshot",
            P2C,
            OURS,
        ),
    ),
    "binding": Table(
        "Late binding: 16 workers of 8 slots, a quarter at half speed, 4 gateways",
        {
            "85 req/s": _MIXED,
            "100 req/s": replace(_MIXED, traffic=Traffic(100)),
            "100 req/s, heartbeat 2 s": replace(_MIXED, traffic=Traffic(100), make=_STALE),
            "50 req/s, heavy tail, heartbeat 2 s": replace(
                _MIXED, traffic=Traffic(50, spread=1.4), make=_STALE
            ),
            "100 req/s, early": replace(_MIXED, traffic=Traffic(100), make=Make(waiting=200)),
        },
    ),
    "prefixes": Table(
        "Prefixes: 16 workers that keep 8 of 64 beginnings (Zipf 0.9)",
        {
            "1 gateway, 45 req/s": replace(_PREFIXES, gateways=1),
            "4 gateways, 35 req/s": replace(_PREFIXES, traffic=Traffic(35, prefixes=64)),
            "4 gateways, 45 req/s": _PREFIXES,
            "4 gateways, 45 req/s, 2 s": replace(_PREFIXES, make=_STALE),
            "8 gateways, 45 req/s": replace(_PREFIXES, gateways=8),
        },
        (WAIT, FIRST, HITS, REFUSED, BUSY),
        plotted=HITS,
        least_hits=0.9,
    ),
    "mixes": Table(
        "Mixes: beginnings that are few, many, or not in each prompt; 16 workers, 4 gateways",
        {
            "1 for all, 85 req/s": _mixed(85, 1),
            "4 for all, 85 req/s": _mixed(85, 4),
            "64 for a half, 60 req/s": _mixed(60, 64, 0.5),
            "512 for all, 25 req/s": _mixed(25, 512),
        },
        (WAIT, FIRST, HITS, REFUSED, BUSY),
    ),
    "talks": Table(
        "Conversations of five turns: 16 workers, 4 gateways",
        {"40 req/s": _TALKS, "40 req/s, 2 s": replace(_TALKS, make=replace(_TALKS.make, beat_s=2.0))},
        (WAIT, FIRST, HITS, REFUSED, BUSY),
        plotted=HITS,
        least_hits=0.9,
    ),
    "overload": Table(
        "Overload: 16 workers, 4 gateways",
        {
            "1.15 times": replace(_MIXED, traffic=Traffic(128)),
            "3 times": replace(_MIXED, traffic=Traffic(333, count=4000)),
            "1.3 times, prefixes": replace(_PREFIXES, traffic=Traffic(80, prefixes=64)),
        },
        (WAIT, FIRST, HITS, REFUSED, BUSY),
    ),
    "sizes": Table(
        "Sizes, at nine tenths of what they can do",
        {
            "4 workers, 2 gateways": _fast(4, 2, 25, 1000),
            "100 workers, 8 gateways": _fast(100, 8, 620, 3000),
            "300 workers, 8 gateways": _fast(300, 8, 1860, 4000),
        },
    ),
    "idle": Table(
        "Hardly anything to do: 4 workers, 2 gateways",
        {
            "equal": replace(_MIXED, traffic=Traffic(2, count=500), workers=4, gateways=2, slow=0),
            "unequal": replace(_MIXED, traffic=Traffic(2, count=500), workers=4, gateways=2),
        },
    ),
    "faults": Table(
        "Accidents: 16 workers, 4 gateways, 70 req/s",
        {
            "accidents": replace(
                _MIXED,
                traffic=Traffic(70, count=2000, leaving=0.02),
                faults=Faults(kills=4, hangs=1, pauses=2, partitions=3, sick=2, gateway_restarts=1),
            ),
            "rolling restart": replace(_MIXED, traffic=Traffic(70, count=4000), faults=Faults(rolling=True)),
        },
        (WAIT, FIRST, REFUSED, LOST, STARTS),
    ),
}
