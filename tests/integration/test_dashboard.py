"""The dashboard over HTTP: files for all, the feed for who has the key, live."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
)

pytestmark = pytest.mark.integration

CONFIG = config_text(fake_worker("w-1") + fake_worker("w-2"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(CONFIG, "w-1") as found:
        yield found


@contextmanager
def watching(cluster: Cluster, headers: dict[str, str] | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """What the feed tells, event by event."""
    url = cluster.url() + "/admin/feed"
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "access-control-allow-origin" not in answer.headers
        yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def worker(state: dict[str, Any], worker_id: str) -> dict[str, Any]:
    return next((dict(each) for each in state["workers"] if each["id"] == worker_id), {})


def test_without_a_key_this_machine_sees_workers_change_and_die_and_requests_fail(cluster: Cluster):
    url = cluster.url()
    with watching(cluster) as events:
        assert worker(next(events), "w-1")["state"] == "ready"
        httpx.post(url + "/v1/chat/completions", json=chat(script(tokens=["a"])), timeout=PATIENCE_S)
        assert next(s for s in events if worker(s, "w-1")["first_token_s"] is not None)
        cluster.start("worker", "w-2")
        next(state for state in events if worker(state, "w-2")["state"] == "ready")
        cluster.signal("w-2", signal.SIGKILL)
        gone = next(state for state in events if worker(state, "w-2")["state"] != "ready")
        assert worker(gone, "w-2")["detail"] == "not connected"
        broken = chat(script(tokens=["a"], repeat=3, raise_at=1), stream=True)
        httpx.post(url + "/v1/chat/completions", json=broken, timeout=PATIENCE_S)
        (failure,) = next(state for state in events if state["failures"])["failures"]
        assert (failure["model"], failure["code"]) == ("fake-model", "engine_failed")


def test_the_page_is_for_all_and_says_nothing_of_the_cluster(cluster: Cluster):
    for path in ("/dashboard", "/dashboard/", "/dashboard/main.js", "/dashboard/style.css"):
        answer = httpx.get(cluster.url() + path, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert not {word for word in ("w-1", "gw-1", "fake-model") if word in answer.text}
    missing = httpx.get(cluster.url() + "/dashboard/nothing.js", timeout=PATIENCE_S)
    assert missing.status_code == 404


@pytest.mark.parametrize("path", ["/admin/feed", "/admin/state", "/admin/requests/x"])
def test_a_name_that_is_not_the_gateways_is_told_nothing_without_a_key(cluster: Cluster, path: str):
    answer = httpx.get(cluster.url() + path, headers={"host": "evil.example:80"}, timeout=PATIENCE_S)
    assert answer.status_code == 403
    assert "add the name to `hosts` in [auth]" in answer.json()["error"]["message"]


def test_where_a_key_is_set_the_feed_takes_it(cluster: Cluster):
    secret = cluster.take_key()
    key = {"authorization": f"Bearer {secret}"}
    url = cluster.url() + "/admin/feed"
    for headers, status in (({}, 401), ({"authorization": "Bearer wrong"}, 403)):
        answer = httpx.get(url, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == status
        assert "w-1" not in answer.text
    with watching(cluster, key) as events:
        assert next(events)["gateways"][0]["id"] == "gw-1"
    assert secret not in cluster.log("gw-1")


def test_who_watches_does_not_keep_a_gateway_from_stopping():
    with running(CONFIG) as cluster, watching(cluster) as events:
        next(events)
        cluster.signal("gw-1", signal.SIGTERM)
        last = list(events)[-1]
        assert last["gateways"][0]["state"] == "draining"
        assert cluster.wait_exit("gw-1") == 0
