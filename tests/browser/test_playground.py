"""The playground talks with models of a real fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.visitor import Visitor, visiting
from tests.integration.cluster import Cluster, config_text, fake_worker, running, script, wait_for
from tests.integration.test_keys import keys
from tests.pictures import png

pytestmark = pytest.mark.integration

WORKERS = fake_worker("w-1") + fake_worker("w-eyes", model="seeing", engine_options={"sees": True})
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(WORKERS), "w-1", "w-eyes") as found:
        yield found


@pytest.fixture
def visitor(browser: Browser, cluster: Cluster) -> Iterator[Visitor]:
    with visiting(browser, cluster) as found:
        found.open("playground")
        expect(found.page.get_by_label("Model")).to_have_value("fake-model")
        yield found


def say(page: Page, text: str) -> Locator:
    """Send it; the answer, which may still grow."""
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()
    return page.locator("#talk > li").last


def test_an_answer_streams_with_its_worker_and_speed_and_the_talk_goes_on(visitor: Visitor):
    page = visitor.page
    answer = say(page, script(tokens=["one ", "<b>two</b> "], repeat=10, delay_ms=20))
    expect(page.locator("#answering")).to_have_text("Answered.")
    expect(answer.locator(".text")).to_have_text("one <b>two</b> " * 10)  # what looks like markup is text
    told = answer.locator(".told")
    expect(told).to_contain_text("worker w-1")
    expect(told).to_contain_text("20 tokens")
    expect(told).to_contain_text("tokens/s")
    expect(page.get_by_label("Message")).to_have_value("")
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "and more")
    body = json.loads(asked.value.post_data or "")
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    expect(page.locator("#answering")).to_have_text("Answered.")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#talk > li")).to_have_count(0)


def test_an_answer_is_stopped_and_the_worker_with_it(visitor: Visitor, cluster: Cluster):
    page = visitor.page
    answer = say(page, script(tokens=["on "], repeat=100_000, delay_ms=20))
    expect(answer.locator(".text")).to_contain_text("on on on")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#answering")).to_have_text("Stopped.")
    expect(answer.locator(".told")).to_contain_text("Stopped.")
    cluster.wait_idle()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


def test_reasoning_and_calls_stand_apart(visitor: Visitor):
    page = visitor.page
    page.get_by_text("Tools", exact=True).click()
    page.locator("#tools").fill(json.dumps(TOOLS))
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
    answer = say(page, script(tokens=["<think>", "let me see", "</think>", "I look. ", call]))
    expect(answer.locator(".reasoning .text")).to_have_text("let me see")
    expect(answer.locator("> .text")).to_have_text("I look. ")
    expect(answer.locator(".call strong")).to_have_text("weather")
    assert json.loads(answer.locator(".call code").inner_text()) == {"city": "Oslo"}
    page.locator("#tools").fill("[")
    say(page, "once more")
    expect(page.locator("#answering")).to_contain_text("the tools are no JSON")


def test_a_picture_goes_to_a_model_that_sees_and_to_no_other(visitor: Visitor):
    page = visitor.page
    expect(page.get_by_label("Pictures")).to_be_hidden()
    page.get_by_label("Model").select_option("seeing")
    page.get_by_label("Pictures").set_input_files(
        {"name": "red.png", "mimeType": "image/png", "buffer": png()}
    )
    answer = say(page, script(echo_prompt=True))
    expect(page.locator("#talk img")).to_be_visible()
    expect(page.locator("#answering")).to_have_text("Answered.")
    expect(answer.locator("> .text")).to_contain_text(f"image/png of {len(png())} bytes")
    expect(answer.locator(".told")).to_contain_text("worker w-eyes")


def test_a_refusal_is_told_in_the_gateways_words_and_the_question_stays(visitor: Visitor):
    page = visitor.page
    page.get_by_label("Most tokens").fill("100000000000000000000")
    say(page, "hello")
    expect(page.locator("#answering")).to_contain_text("Failed: ")
    expect(page.locator("#answering")).to_contain_text("max_tokens")
    expect(page.get_by_label("Message")).to_have_value("hello")
    assert all("status of 400" in said for said in visitor.wrong)
    visitor.wrong.clear()


def test_an_api_key_opens_the_playground_and_nothing_else(browser: Browser):
    with running(config_text(fake_worker("w-1")), "w-1") as cluster:
        cluster.take_key()
        key = keys(cluster, "create", "alice")
        models = f"{cluster.url()}/v1/models"
        wait_for(lambda: httpx.get(models).status_code == 401, "the key to be in force")
        with visiting(browser, cluster, key) as visitor:
            page = visitor.page
            visitor.open("playground")
            say(page, script(tokens=["hello"]))
            expect(page.locator("#answering")).to_have_text("Answered.")
            page.get_by_role("link", name="Fleet").click()
            expect(page.get_by_label("Admin key")).to_be_visible()
            expect(page.locator("#told")).to_be_hidden()
            assert all("status of 403" in said for said in visitor.wrong)
            visitor.wrong.clear()
