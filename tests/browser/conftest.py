"""A real browser before a real cluster. Playwright keeps an event loop in this thread meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

LIMIT_MS = 20_000


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    expect.set_options(timeout=LIMIT_MS)
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium refuses to be root in its sandbox
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=flags)
        yield found
        found.close()
