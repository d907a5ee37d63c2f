"""docs/troubleshooting.md names for each symptom the test that produces it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| symptom")]


def test_every_row_names_a_test_that_exists():
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))
    assert len(ROWS) >= 30
    for row in ROWS:
        named = re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[-2])
        assert named, row
        assert set(named) <= known, row


def test_every_row_has_a_cause_and_a_cure():
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4, row
        assert all(cells), row
