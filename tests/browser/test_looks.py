"""How the dashboard looks, in light and dark, on a desk and on a phone, and to who cannot see it.

DASHBOARD_PICTURES=FOLDER keeps the pictures, to be looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.visitor import Visitor, visiting
from tests.integration.cluster import PATIENCE_S, Cluster, chat, config_text, fake_worker, running, script

pytestmark = pytest.mark.integration

WORKERS = "".join(
    (
        fake_worker("w-1", engine_options={"decode_tokens_per_s": 40}),
        fake_worker("w-2", model="another-model-with-a-name-that-is-rather-long-8b-instruct-4bit"),
        fake_worker("w-3"),
    )
)
SIZES = {"desk": (1280, 900), "phone": (360, 740)}
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One worker is busy, a request has failed, a worker is missing."""
    with running(config_text(WORKERS), "w-1", "w-2") as found:
        url = found.url() + "/v1/chat/completions"
        httpx.post(
            url, json=chat(script(tokens=["a"], repeat=3, raise_at=1), stream=True), timeout=PATIENCE_S
        )
        busy = chat(script(tokens=["a"], repeat=100_000, delay_ms=25), stream=True)
        with httpx.stream("POST", url, json=busy, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            yield found
            next(lines)  # it went on meanwhile


@pytest.fixture(scope="module")
def key(cluster: Cluster) -> str:
    return cluster.take_key()


def look(page: Page, name: str) -> None:
    """Keep a picture; nothing may stick out, and no serious fault may be found."""
    if folder := os.environ.get("DASHBOARD_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, name
    faults = Axe().run(page).response["violations"]
    told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in faults]
    assert not [each for each in faults if each["impact"] in SERIOUS], (name, told)


def lightness(page: Page) -> float:
    """Of the page's ground, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def talk(visitor: Visitor) -> None:
    page = visitor.page
    page.get_by_role("link", name="Playground").click()
    page.get_by_label("Model").select_option("fake-model")
    page.get_by_label("Message").fill(
        script(tokens=["<think>", "A thought. ", "</think>", "An answer, word by word. "], delay_ms=5)
    )
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answering")).to_have_text("Answered.")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_looks_right_and_is_for_all(browser: Browser, cluster: Cluster, key: str, theme: str, size: str):
    width, height = SIZES[size]
    context = {"color_scheme": theme, "viewport": {"width": width, "height": height}}
    with visiting(browser, cluster, key, **context) as visitor:
        page = visitor.page
        visitor.open()
        expect(visitor.state("w-1")).to_have_text("ready")
        expect(visitor.card("w-1").get_by_text("1 of 8")).to_be_visible()
        expect(page.locator("#failures")).to_contain_text("engine_failed: fake-model")
        line = visitor.card("w-1").locator("polyline").first
        expect(line).to_have_attribute("points", re.compile(r"^(\S+ ){2,}\S+$"))
        assert (lightness(page) > 128) == (theme == "light")
        look(page, f"fleet-{theme}-{size}")
        talk(visitor)
        look(page, f"playground-{theme}-{size}")


def test_the_form_for_the_key_is_for_all_too(browser: Browser, cluster: Cluster, key: str):
    with visiting(browser, cluster) as visitor:
        visitor.open()
        expect(visitor.page.get_by_label("Admin key")).to_be_visible()
        look(visitor.page, "key")
        visitor.wrong.clear()  # the browser tells of the answer 401


def test_another_theme_is_chosen_and_kept(browser: Browser, cluster: Cluster, key: str):
    with visiting(browser, cluster, key, color_scheme="light") as visitor:
        page = visitor.page
        visitor.open()
        for _ in range(2):  # from the system's to light to dark
            page.get_by_role("button", name="Theme").click()
        assert lightness(page) < 128
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert lightness(page) < 128
