"""Runs the fleet's own policies, and others, on a simulated fleet, and compares them.

Every policy meets the same requests, machines and accidents, seed by seed. Printed are medians over
the seeds with the least and the most, in Markdown. Exit code 1: something that must hold in every run
did not, or ours does worse than it may.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from scripts.simulation import report
from scripts.simulation.plots import Bar, bars
from scripts.simulation.tables import TABLES, Table


def main() -> int:
    options = _options()
    logging.disable(logging.CRITICAL)  # the policies tell of each accident
    begun = time.process_time()
    failures: list[str] = []
    requests = 0
    for name in options.tables or TABLES:
        table = TABLES[name]
        results = report.run(table, range(options.seeds), _told)
        requests += sum(outcome.requests for outcomes in results.values() for outcome in outcomes)
        lines = report.verdict(table, results)
        print(f"\n## {table.title}\n")
        if options.plots is not None:
            _plot(options.plots / f"{name}.svg", table, results)
            print(f"![{table.plotted.name}]({options.plots.name}/{name}.svg)\n")
        print("\n".join([*report.markdown(table, results), "", *(f"- {line}" for line in lines)]))
        failures += [line for line in lines if line.startswith("FAIL")] + report.violations(results)
    seconds = time.process_time() - begun
    print(f"\n{requests} requests in {seconds:.0f} s of CPU, {requests / seconds:.0f} a second")
    print("\n".join(failures) or "everything held that must hold")
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"all, or some of: {', '.join(TABLES)}")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each policy (10)")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw each table there as SVG")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no table is called {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if options.seeds < 1:
        parser.error("without a seed nothing runs")
    return options


def _told(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def _plot(path: Path, table: Table, results: report.Results) -> None:
    """Of the first measure that tells."""
    measure = table.plotted
    groups = {
        name: [Bar(*report.spread(measure, results[name, policy])) for policy in table.policies]
        for name in table.scenarios
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(bars(f"{table.title}: {measure.name}", groups, table.policies))


if __name__ == "__main__":
    sys.exit(main())
