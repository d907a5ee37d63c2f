"""The short form of `scripts/simulate`: every policy on a small fleet, and what ours has to reach."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from scripts.simulation import report
from scripts.simulation.fleet import simulate
from scripts.simulation.plots import Bar, bars
from scripts.simulation.policies import OURS, P2C, POLICIES
from scripts.simulation.scenario import Faults, Scenario
from scripts.simulation.service import Make
from scripts.simulation.tables import HITS, TABLES, Table
from scripts.simulation.traffic import Traffic, draw

EVERYTHING = Scenario(
    Traffic(20, count=250, prefixes=8, leaving=0.05),
    workers=4,
    gateways=2,
    faults=Faults(1, 1, 1, 1, 1, 1, rolling=True),
)
STALE = Scenario(Traffic(85, count=1200), make=Make(beat_s=2.0))
PREFIXES = Scenario(Traffic(40, count=1000, prefixes=64), make=Make(beat_s=2.0))


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_happens_the_invariants_hold(policy):
    outcome = simulate(EVERYTHING, policy, 1)
    assert outcome.violations == ()
    assert outcome.lost < 0.05


def test_a_run_repeats_itself_and_another_seed_is_another_run():
    first, again, other = (simulate(EVERYTHING, OURS, seed) for seed in (3, 3, 4))
    assert first == again
    assert first.digest != other.digest


def test_every_policy_is_asked_the_same():
    assert draw(PREFIXES.traffic, 4, 5) == draw(PREFIXES.traffic, 4, 5)
    talks = draw(Traffic(10, count=50, turns=5), 2, 1)
    assert sum(request.returns for request in talks) == 40
    assert all(request.shared < request.prompt for request in talks)


def test_with_stale_views_nobody_waits_longer_than_with_the_better_of_two():
    table = Table("", {"stale": STALE}, policies=(P2C, OURS))
    results = report.run(table, range(3), lambda _what: None)
    assert statistics.median(report.wait_ratios("stale", results)) <= report.MOST_RATIO
    assert statistics.median(report.refused_more("stale", table, results)) <= report.MOST_REFUSED
    assert report.violations(results) == []


def test_prefixes_are_found_where_chance_does_not_find_them():
    ours = [simulate(PREFIXES, OURS, seed).hits for seed in range(3)]
    chance = simulate(PREFIXES, "random", 0).hits
    assert min(ours) > 0.9 - 0.05
    assert statistics.median(ours) >= 0.9
    assert chance < 0.6


def test_a_conversation_stays_where_its_turns_are_known():
    talks = Scenario(
        Traffic(20, count=600, turns=5), workers=8, gateways=2, make=Make(cache=40_000, beat_s=2.0)
    )
    ours, chance = (simulate(talks, policy, 1).hits for policy in (OURS, "random"))
    assert ours >= 0.9
    assert chance < 2 / 8


def test_what_all_share_binds_nobody_to_two_workers():
    shared = Scenario(Traffic(80, count=1200, prefixes=1))
    ours, other = (simulate(shared, policy, 1) for policy in (OURS, P2C))
    assert ours.wait_p99 <= 1.05 * other.wait_p99
    assert ours.refused == 0


def test_a_report_names_what_fails():
    table = Table("", {"small": STALE}, policies=("random", P2C, OURS))
    bad, good = (simulate(Scenario(Traffic(rate, count=600)), OURS, 1) for rate in (1000, 10))
    results = {("small", "random"): [good], ("small", P2C): [good], ("small", OURS): [bad]}
    assert report.verdict(table, results)[0].startswith("FAIL small")
    finding = replace(table, measures=(HITS,), least_hits=0.9)
    results["small", OURS] = [replace(good, hits=0.8)]
    assert report.verdict(finding, results)[0].startswith("FAIL small")
    results["small", OURS] = [good]
    assert report.verdict(table, results)[0].startswith("small: wait p99 1.00")
    assert len(report.markdown(table, results)) == 2 + 3


def test_a_plot_is_a_picture_of_its_table():
    picture = bars("a < b", {"x": [Bar(1, 2, 4), Bar(0, 0, 0)]}, ("one", "two"))
    assert picture.startswith("<svg")
    assert "a &lt; b" in picture
    assert picture.count("<rect") == 4


def test_tables_have_what_is_compared():
    for table in TABLES.values():
        assert {OURS, P2C} <= set(table.policies) <= set(POLICIES)
