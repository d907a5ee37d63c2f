"""The blocks in the documentation: each is run, parsed, or only shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from protocol.config import parse

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "scripts" / "README.md"])
FENCES = [
    (page, language, block)
    for page in PAGES
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
]
RUN = {
    "README.md": "tests/mlx/test_readme.py",
    "operations.md": "tests/integration/test_operations.py",
    "fleet.md": "tests/fleet/test_nodes.py",
}
"""The tests that run every block of a page."""
TABLES = [(page, block) for page, language, block in FENCES if language == "toml"]
LEAST = 'version = 1\n[gateway]\nid = "gw"\nhttp = "127.0.0.1:0"\n[[workers]]\nid = "w"\nmodel = "m"\n'


@pytest.mark.parametrize(("page", "language", "block"), FENCES)
def test_a_block_says_what_it_is(page: Path, language: str, block: str):
    """What runs is `sh` or `python`, so that no other name hides a command from being tried."""
    assert language in {"", "text", "sh", "python", "toml"}, page
    if language in {"sh", "python"}:
        assert page.name in (ROOT / RUN[page.name]).read_text()
    if language in {"", "text"}:
        assert not re.search(r"^(\$ |\./scripts/|clusterctl \w|curl |pip )", block, re.MULTILINE), page


@pytest.mark.parametrize(("page", "block"), TABLES)
def test_a_piece_of_configuration_is_one(page: Path, block: str):
    """Beneath a worker's table, for pieces that are keys of a worker."""
    least = LEAST.replace('model = "m"\n', "") if block.startswith("model = ") else LEAST
    assert parse(least + block).workers, page
