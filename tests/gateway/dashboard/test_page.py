"""The page and its files: what they are sent with, and what they must not hold."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.dashboard import page
from gateway.dashboard.page import POLICY, Page
from protocol import __version__
from protocol.errors import ClusterError

STATIC = Path(page.__file__).with_name("static")
FILES = sorted(path.name for path in STATIC.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]


def get(name: str = "", etag: str = "") -> Response:
    scope = {
        "type": "http",
        "headers": [(b"if-none-match", etag.encode())] if etag else [],
        "path_params": {"file": name},
    }
    pages = Page()
    return asyncio.run((pages.file if name else pages.page)(Request(scope)))


def test_the_page_tells_the_version_and_names_only_files_that_there_are():
    text = bytes(get().body).decode()
    assert f"<small>{__version__}</small>" in text
    named = re.findall(r'(?:src|href)="([^#][^"]*)"', text)
    assert named
    assert {name.removeprefix("/dashboard/") for name in named} < set(FILES)


def test_no_script_and_no_style_stands_in_the_page():
    text = (STATIC / "page.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", text)


@pytest.mark.parametrize("name", ["", *(name for name in FILES if name != "page.html")])
def test_everything_is_sent_with_the_policy(name: str):
    headers = get(name).headers
    assert headers["content-security-policy"] == POLICY
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert headers["referrer-policy"] == "no-referrer"


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline():
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["img-src"] == "'self' data:"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_no_markup_of_text_and_ask_nobody_else(name: str):
    text = (STATIC / name).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
    )
    assert set(re.findall(r"https?://[^\"]+", text)) <= {"http://www.w3.org/2000/svg"}
    imported = re.findall(r'from "\./([^"]+)"', text)
    assert set(imported) <= set(SCRIPTS)


def test_the_key_is_kept_in_the_tab_only():
    for name in SCRIPTS:
        kept = re.findall(r"localStorage\.\w+\(\"([^\"]+)\"", (STATIC / name).read_text())
        assert set(kept) <= {"studiofleet-theme"}


def test_what_the_browser_has_is_not_sent_again():
    first = get("main.js")
    again = get("main.js", etag=first.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")
    assert get("main.js", etag='"another"').status_code == 200


@pytest.mark.parametrize("name", ["page.html", "page.py", "..", "nothing.js"])
def test_other_files_are_not_there(name: str):
    with pytest.raises(ClusterError, match="/dashboard"):
        get(name)
