"""Every check that tests/conformance lists has a test of that number."""

from __future__ import annotations

import re
from pathlib import Path

from tests import conformance

TESTS = Path(__file__).parent


def test_every_check_has_a_test_of_its_number():
    listed = {
        int(number) for number in re.findall(r"(?:^| {6,})(\d\d?| \d) \S", conformance.__doc__ or "", re.M)
    }
    assert listed == set(range(1, 26))
    sources = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    tested = {int(number) for number in re.findall(r"^(?:async )?def test_check_(\d\d)_", sources, re.M)}
    assert tested == listed
