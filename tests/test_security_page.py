"""docs/security.md names for each claim the tests that tried it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
HEADS = re.compile(r"^\| (it|he) cannot \| test \|$")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not HEADS.match(line)]


def test_every_claim_names_tests_that_exist():
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)", sources, re.MULTILINE))
    assert len(ROWS) >= 25
    for row in ROWS:
        claim, tests = row.strip("|").rsplit(" | ", 1)
        assert claim.strip()
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, row
        assert set(named) <= known, set(named) - known


def test_every_party_has_claims():
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    assert len(parts) >= 7
    assert [part.splitlines()[0] for part in parts if "cannot | test |" not in part] == []
