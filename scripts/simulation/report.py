"""Runs a table with paired seeds, and tells of it in Markdown: medians with ranges, and what must hold."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from scripts.simulation.fleet import Outcome, simulate
from scripts.simulation.policies import OURS, P2C
from scripts.simulation.tables import HITS, Measure, Table

Results = Mapping[tuple[str, str], Sequence[Outcome]]
"""By scenario and policy; the same place is the same seed."""

LEAST_WAIT_S = 0.02
"""Shorter waits are taken to be as long: nobody notices them, and their ratio says nothing."""
MOST_RATIO = 1.05
MOST_REFUSED = 0.01


def run(table: Table, seeds: Sequence[int], told: Callable[[str], None]) -> Results:
    """All policies with all seeds."""
    results: dict[tuple[str, str], list[Outcome]] = {}
    for name, scenario in table.scenarios.items():
        for policy in table.policies:
            told(f"{name}, {policy}")
            results[name, policy] = [simulate(scenario, policy, seed) for seed in seeds]
    return results


def markdown(table: Table, results: Results) -> list[str]:
    lines = [
        "| scenario | policy | " + " | ".join(measure.name for measure in table.measures) + " |",
        "|---|---|" + "---|" * len(table.measures),
    ]
    for name in table.scenarios:
        for policy in table.policies:
            cells = [cell(measure, results[name, policy]) for measure in table.measures]
            shown = f"**{policy}**" if policy == OURS else policy
            lines.append(f"| {name} | {shown} | " + " | ".join(cells) + " |")
    return lines


def cell(measure: Measure, outcomes: Sequence[Outcome]) -> str:
    """The median, and the least and the most."""
    low, middle, high = spread(measure, outcomes)
    digits = measure.digits
    return f"{middle:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"  # noqa: RUF001


def spread(measure: Measure, outcomes: Sequence[Outcome]) -> tuple[float, float, float]:
    """Least, median, most."""
    values = [measure.of(outcome) for outcome in outcomes]
    return min(values), statistics.median(values), max(values)


def violations(results: Results) -> list[str]:
    """What was wrong in any run."""
    return [
        f"{name}, {policy}, seed {seed}: {violation}"
        for (name, policy), outcomes in results.items()
        for seed, outcome in enumerate(outcomes)
        for violation in outcome.violations
    ]


def wait_ratios(name: str, results: Results) -> list[float]:
    """Ours against P2C's, seed by seed."""
    return [
        max(LEAST_WAIT_S, ours.wait_p99) / max(LEAST_WAIT_S, other.wait_p99)
        for ours, other in zip(results[name, OURS], results[name, P2C], strict=True)
    ]


def refused_more(name: str, table: Table, results: Results) -> list[float]:
    """By how much of all requests ours refuses more than the best of the others, seed by seed."""
    others = [results[name, policy] for policy in table.policies if policy != OURS]
    return [
        ours.refused - min(outcome.refused for outcome in paired)
        for ours, *paired in zip(results[name, OURS], *others, strict=True)
    ]


def verdict(table: Table, results: Results) -> list[str]:
    """For each scenario how ours does; lines that begin with FAIL are what it should not do."""
    lines = []
    for name in table.scenarios:
        ratios, more = wait_ratios(name, results), refused_more(name, table, results)
        ratio, refused = statistics.median(ratios), statistics.median(more)
        good = ratio <= MOST_RATIO and refused <= MOST_REFUSED
        line = (
            f"{name}: wait p99 {ratio:.2f} times P2C's (worst seed {max(ratios):.2f}),"
            f" {100 * refused:+.1f} points refused (worst seed {100 * max(more):+.1f})"
        )
        if HITS in table.measures:
            hits = [outcome.hits for outcome in results[name, OURS]]
            good = good and statistics.median(hits) >= table.least_hits
            line += f", hits {100 * statistics.median(hits):.0f} % (worst seed {100 * min(hits):.0f} %)"
        lines.append(line if good else f"FAIL {line}")
    return lines
