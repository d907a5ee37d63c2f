"""The dashboard shows a real fleet, and acts on it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.visitor import visiting
from tests.integration.cluster import PATIENCE_S, Cluster, config_text, fake_worker, running

pytestmark = pytest.mark.integration

WORKERS = fake_worker("w-1") + fake_worker("w-2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(WORKERS), "w-1") as found:
        yield found


@pytest.fixture(scope="module")
def key(cluster: Cluster) -> str:
    return cluster.take_key()


def test_nothing_is_shown_without_the_key_and_it_is_kept_in_the_tab_only(
    browser: Browser, cluster: Cluster, key: str
):
    with visiting(browser, cluster) as visitor:
        page = visitor.page
        visitor.open()
        expect(page.get_by_label("Admin key")).to_be_visible()
        assert "w-1" not in page.content()
        page.get_by_label("Admin key").fill(key)
        page.get_by_role("button", name="Use it").click()
        expect(visitor.state("w-1")).to_have_text("ready")
        expect(page.locator("#key")).to_be_hidden()
        assert key not in page.evaluate("JSON.stringify(localStorage)")
        assert key not in page.content()
        assert page.context.cookies() == []
        page.reload()
        expect(visitor.state("w-1")).to_have_text("ready")
        page.get_by_role("button", name="Forget the key").click()
        expect(page.get_by_label("Admin key")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
        refusals = [said for said in visitor.wrong if "status of 401" in said]
        assert refusals == visitor.wrong  # the browser tells of each answer that is none
        visitor.wrong.clear()


def test_workers_appear_and_vanish_and_a_kill_shows(browser: Browser, cluster: Cluster, key: str):
    with visiting(browser, cluster, key) as visitor:
        visitor.open()
        expect(visitor.state("w-2")).to_have_text("stopped")
        cluster.start("worker", "w-2")
        expect(visitor.state("w-2")).to_have_text("ready")
        began = time.monotonic()
        cluster.signal("w-2", signal.SIGKILL)
        cluster.wait_exit("w-2")
        expect(visitor.state("w-2")).to_have_text("stopped")
        print(f"kill_shown_after_s: {round(time.monotonic() - began, 2)}")
        # One that this gateway's configuration does not name is there only while it is.
        cluster.home.config.write_text(config_text(WORKERS + fake_worker("w-3")))
        cluster.start("worker", "w-3")
        expect(visitor.state("w-3")).to_have_text("ready")
        cluster.signal("w-3", signal.SIGTERM)
        cluster.wait_exit("w-3")
        expect(visitor.card("w-3")).to_have_count(0)


def test_a_worker_is_drained_and_taken_back_by_the_keyboard_alone(
    browser: Browser, cluster: Cluster, key: str
):
    with visiting(browser, cluster, key) as visitor:
        page = visitor.page
        visitor.open()
        expect(visitor.state("w-1")).to_have_text("ready")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        for order, state in (("Drain", "draining"), ("Undrain", "ready")):
            button = page.get_by_role("button", name=f"{order} w-1", exact=True)
            expect(button).to_be_enabled()
            for _ in range(20):
                page.keyboard.press("Tab")
                if button.evaluate("each => each === document.activeElement"):
                    break
            page.keyboard.press("Enter")
            expect(visitor.state("w-1")).to_have_text(state)


def test_a_restart_is_asked_about_and_then_done(browser: Browser, cluster: Cluster, key: str):
    with visiting(browser, cluster, key) as visitor:
        page = visitor.page
        visitor.open()
        cluster.start("worker", "w-2")
        expect(visitor.state("w-2")).to_have_text("ready")
        restart = page.get_by_role("button", name="Restart w-2")
        restart.click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        expect(visitor.state("w-2")).to_have_text("ready")
        restart.click()
        page.get_by_role("dialog").get_by_role("button", name="Restart").click()
        assert cluster.wait_exit("w-2") == 75  # what has a supervisor start it again


def test_a_gateway_that_was_away_is_found_again(browser: Browser):
    with running(config_text(WORKERS)) as cluster, visiting(browser, cluster) as visitor:
        visitor.open()
        connection = visitor.page.locator("#connection")
        expect(connection).to_have_text("live")
        address = cluster.url().removeprefix("http://")
        cluster.signal("gw-1", signal.SIGTERM)
        cluster.wait_exit("gw-1")
        expect(connection).to_have_text("not connected, trying again")
        cluster.home.config.write_text(config_text(WORKERS).replace("127.0.0.1:0", address))
        cluster.start("gateway", "gw-1")
        expect(connection).to_have_text("live")
        visitor.wrong.clear()  # the browser tells of each connection that was refused


def test_one_dashboard_too_many_is_told_so(browser: Browser, cluster: Cluster, key: str):
    with ExitStack() as others, visiting(browser, cluster, key) as visitor:
        feed, headers = cluster.url() + "/admin/feed", {"authorization": f"Bearer {key}"}
        for _ in range(32):
            others.enter_context(httpx.stream("GET", feed, headers=headers, timeout=PATIENCE_S))
        visitor.open()
        connection = visitor.page.locator("#connection")
        expect(connection).to_have_text(
            "32 dashboards are open, which is as many as may be; close one; trying again"
        )
        others.close()
        expect(connection).to_have_text("live")
        assert all("429" in told for told in visitor.wrong)  # each try, in the browser's own words
        visitor.wrong.clear()


def test_an_idle_dashboard_costs_the_gateway_next_to_nothing(browser: Browser, cluster: Cluster, key: str):
    process = psutil.Process(cluster.processes["gw-1"].pid)
    with visiting(browser, cluster, key) as visitor:
        visitor.open()
        line = visitor.card("w-1").locator("polyline").first
        expect(line).to_have_attribute("points", _points(3))
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        expect(line).to_have_attribute("points", _points(6))
        share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    print(f"gateway_cpu_share: {round(share, 4)}")
    assert share < 0.1


def _points(count: int) -> re.Pattern[str]:
    """At least so many were told."""
    return re.compile(rf"^(\S+ ){{{count - 1},}}\S+$")
