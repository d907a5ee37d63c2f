"""Somebody who looks at a dashboard, and notes whatever the browser finds wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Locator, Page

from tests.browser.conftest import LIMIT_MS
from tests.integration.cluster import Cluster

_KEPT = "sessionStorage.setItem('studiofleet-key', '{key}')"


class Visitor:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda asked: self._look_at(asked.url))

    def _look_at(self, asked: str) -> None:
        if not asked.startswith((f"{self.url}/", "data:")):
            self.wrong.append(f"a request to {asked}")

    def open(self, view: str = "fleet") -> None:
        self.page.goto(f"{self.url}/dashboard#{view}")

    def card(self, worker_id: str) -> Locator:
        return self.page.locator(f"#workers > li[data-id='{worker_id}']")

    def state(self, worker_id: str) -> Locator:
        return self.card(worker_id).locator(".state")


@contextmanager
def visiting(browser: Browser, cluster: Cluster, key: str = "", **context: Any) -> Iterator[Visitor]:
    """With the key in its tab already where one is given. Fails where the browser found something wrong,
    the policy's reports among it."""
    opened = browser.new_context(**context)
    opened.set_default_timeout(LIMIT_MS)
    if key:
        opened.add_init_script(_KEPT.format(key=key))
    visitor = Visitor(opened.new_page(), cluster.url())
    try:
        yield visitor
    finally:
        opened.close()
    assert visitor.wrong == []
