"""The page of results has the form in which `scripts/simulate` prints them, table by table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.simulation import report
from scripts.simulation.fleet import Outcome
from scripts.simulation.tables import TABLES, Table

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "simulation.md").read_text()
CELL = re.compile(r"-?\d+(\.\d+)? \[-?\d+(\.\d+)?–-?\d+(\.\d+)?\]")  # noqa: RUF001
VERDICT = re.compile(r"[+-]?\d+(\.\d+)?(?= times| points| %|\))")
LARGEST_PICTURE = 60_000
SERVED = Outcome(0.1, 0.2, 0.3, 0.0, 0.0, 1.0, 0.0, 1.0, 100, (), "")


def form(lines: list[str]) -> list[str]:
    """What is printed, whatever the measured numbers."""
    return [VERDICT.sub("0", line) if line.startswith("- ") else CELL.sub("0", line) for line in lines]


def printed(table: Table) -> list[str]:
    results = {(name, policy): [SERVED] for name in table.scenarios for policy in table.policies}
    verdict = [f"- {line}" for line in report.verdict(table, results)]
    return [*report.markdown(table, results), "", *verdict]


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_each_table_as_it_is_printed(name):
    table = TABLES[name]
    section = PAGE.split(f"\n## {table.title}\n")[1].split("\n## ")[0]
    expected = ["", f"![{table.plotted.name}](simulation/{name}.svg)", "", *printed(table)]
    assert form(section.splitlines()[: len(expected)]) == form(expected)


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_its_picture(name):
    table = TABLES[name]
    picture = (DOCS / "simulation" / f"{name}.svg").read_text()
    assert len(picture) < LARGEST_PICTURE
    assert all(f">{policy}</text>" in picture for policy in table.policies)
    assert all(f">{scenario}</text>" in picture for scenario in table.scenarios)


def test_the_page_hides_no_failure():
    assert "FAIL" not in PAGE, "a table does not hold: say why above the tables, and name it here"
