"""API keys on a real gateway: asked for from the first one on, in every dialect, and read again in use."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from protocol.keys import ensure_admin_key, read_admin_key
from protocol.states import ExitCode
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    wait_for,
)

pytestmark = pytest.mark.integration

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 5},
    "/api/chat": {"messages": [USER], "stream": False},
    "/tokenize": {"prompt": "hi"},
}
"""One request of each dialect."""
WORKERS = fake_worker("w-1", model="m", aliases=["default"]) + fake_worker("w-2", model="other")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(config_text(WORKERS), "w-1", "w-2") as cluster:
        ensure_admin_key(cluster.home)
        cluster.signal("gw-1", signal.SIGHUP)
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client:
        yield client


def keys(cluster: Cluster, *arguments: str) -> str:
    """What `clusterctl keys` writes to stdout."""
    return clusterctl(cluster, "keys", *arguments)


def clusterctl(cluster: Cluster, *arguments: str) -> str:
    result = CliRunner().invoke(
        cli, arguments, env={"STUDIOFLEET_HOME": str(cluster.home.path)}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def becomes(client: httpx.Client, status: int, key: str = "") -> None:
    def answer() -> bool:
        return client.get("/v1/models", headers=bearer(key) if key else {}).status_code == status

    wait_for(answer, f"status {status}", 5.0)


def away_from_the_minutes_end() -> None:
    """A minute that turns while requests are counted would give back a part of one."""
    while time.time() % 60 > 54:
        time.sleep(0.1)


def kind(answer: httpx.Response) -> Any:
    """The type of an error, as clients of that dialect read it."""
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["type"]


def test_from_the_first_key_on_every_dialect_asks_for_one(cluster, client):
    assert client.post("/v1/chat/completions", json=chat("hi", model="m")).status_code == 200
    key = keys(cluster, "create", "alice", "--model", "m")
    becomes(client, 401)
    for path, body in BODIES.items():
        without = client.post(path, json={**body, "model": "m"})
        wrong = client.post(path, json={**body, "model": "m"}, headers=bearer(key[:-1] + "~"))
        assert (without.status_code, wrong.status_code) == (401, 401), path
        told = [answer.json() for answer in (without, wrong)]
        for body_of in told:
            body_of.pop("request_id", None)
        assert told[0] == told[1], path
        assert without.headers["www-authenticate"] == "Bearer"
        if path == "/v1/messages":
            assert told[0]["type"] == "error"
        if not path.startswith("/api"):
            assert kind(without) == "authentication_error", path
        for headers in (bearer(key), {"x-api-key": key}, {**bearer("dummy"), "x-api-key": key}):
            assert client.post(path, json={**body, "model": "m"}, headers=headers).status_code == 200, path
    keys(cluster, "revoke", "alice")
    becomes(client, 401, key)


def test_a_key_may_use_its_models_and_sees_no_others(cluster, client):
    key = keys(cluster, "create", "bob", "--model", "def*")
    becomes(client, 200, key)
    client.headers.update(bearer(key))
    for path, body in BODIES.items():
        refused = client.post(path, json={**body, "model": "other"})
        assert refused.status_code == 403, path
        if not path.startswith("/api"):
            assert kind(refused) == "permission_error", path
        assert client.post(path, json={**body, "model": "m"}).status_code == 200, path
        assert client.post(path, json=body).status_code == 200, "the only one that it may use"
        missing = client.post(path, json={**body, "model": "nothing"})
        assert missing.status_code == 404, path
        assert "other" not in missing.text
    error = client.post("/v1/chat/completions", json=chat("hi", model="other")).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_allowed", "model")
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["m"]
    assert [model["name"] for model in client.get("/api/tags").json()["models"]] == ["m"]
    assert [model["id"] for model in client.get("/api/v0/models").json()["data"]] == ["m"]
    assert [client.get(f"/v1/models/{name}").status_code for name in ("m", "other")] == [200, 403]
    keys(cluster, "revoke", "bob")


def test_a_kept_response_is_told_to_its_own_key_only(cluster, client):
    mine, other = (bearer(keys(cluster, "create", name)) for name in ("erin", "frank"))
    becomes(client, 200, other["authorization"].removeprefix("Bearer "))
    made = client.post("/v1/responses", json={"input": "hi", "model": "m"}, headers=mine).json()["id"]
    more = {"input": "and?", "model": "m", "previous_response_id": made}
    assert client.post("/v1/responses", json=more, headers=mine).status_code == 200
    refused = client.post("/v1/responses", json=more, headers=other)
    unknown = client.post("/v1/responses", json=more | {"previous_response_id": "resp_x"}, headers=other)
    assert (refused.status_code, refused.json()) == (400, unknown.json())
    output = client.get(f"/v1/responses/{made}", headers=mine).json()["output"]
    item = {"type": "item_reference", "id": output[0]["id"]}
    refused = client.post("/v1/responses", json={"input": [item], "model": "m"}, headers=other)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].id")
    assert client.post("/v1/responses", json={"input": [item], "model": "m"}, headers=mine).status_code == 200
    path = f"/v1/responses/{made}"
    assert [client.get(path, headers=h).status_code for h in (other, mine)] == [404, 200]
    assert [client.delete(path, headers=h).status_code for h in (other, mine)] == [404, 200]
    for name in ("erin", "frank"):
        keys(cluster, "revoke", name)


def test_what_tells_nothing_asks_for_no_key_and_the_operator_has_one(cluster, client):
    keys(cluster, "create", "carol")
    becomes(client, 401)
    for path in ("/", "/health", "/health/ready", "/version", "/metrics", "/admin/state"):
        assert client.get(path).status_code == 200, path
    assert client.options("/v1/chat/completions").status_code == 204
    assert client.get("/v1/nothing").status_code == 401
    admin = bearer(read_admin_key(cluster.home))
    wait_for(lambda: client.get("/v1/models", headers=admin).status_code == 200, "the admin key to be known")
    keys(cluster, "revoke", "carol")


def test_the_limits_of_a_key_are_told_in_each_dialect(cluster, client):
    key = keys(cluster, "create", "gina", "--requests-per-minute", "5", "--max-concurrent", "2")
    becomes(client, 200, key)
    client.headers.update(bearer(key))
    away_from_the_minutes_end()
    generating = {path: body for path, body in BODIES.items() if path != "/tokenize"}
    for left, (path, body) in enumerate(reversed(generating.items())):
        told = client.post(path, json={**body, "model": "m"})
        assert told.status_code == 200, path
        assert told.headers["x-ratelimit-limit-requests"] == "5"
        assert told.headers["x-ratelimit-remaining-requests"] == str(4 - left)
        theirs = told.headers.get("anthropic-ratelimit-requests-remaining")
        assert theirs == (str(4 - left) if path == "/v1/messages" else None)
    for path, body in generating.items():
        refused = client.post(path, json={**body, "model": "m"})
        assert refused.status_code == 429, path
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert float(refused.headers["retry-after-ms"]) > 0
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        if not path.startswith("/api"):
            assert kind(refused) == "rate_limit_error", path
    too_many = client.post("/v1/chat/completions", json=chat("hi", model="m", n=3))
    assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
    assert client.get("/v1/models").status_code == 200, "only answers are counted"
    keys(cluster, "revoke", "gina")


def test_what_is_sent_by_a_key_with_tokens_is_counted(cluster, client):
    key = keys(cluster, "create", "hugo", "--tokens-per-minute", "30")
    becomes(client, 200, key)
    body = chat(script(tokens=["a"], repeat=40), model="m")
    client.headers.update(bearer(key))
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as first:
        assert first.status_code == 200
        assert first.headers["x-ratelimit-remaining-tokens"] == "30"
        first.read()

    def refused() -> bool:
        return bool(client.post("/v1/chat/completions", json=body).status_code == 429)

    wait_for(refused, "the tokens to be counted", 5.0)
    keys(cluster, "revoke", "hugo")


def test_a_rotated_key_overlaps_and_a_broken_file_changes_nothing(cluster, client):
    old = keys(cluster, "create", "dave")
    new = keys(cluster, "rotate", "dave", "--overlap", "1h")
    becomes(client, 200, new)
    assert client.get("/v1/models", headers=bearer(old)).status_code == 200
    newest = keys(cluster, "rotate", "dave")
    becomes(client, 200, newest)
    assert client.get("/v1/models", headers=bearer(new)).status_code == 401

    content = cluster.home.api_keys.read_bytes()
    cluster.home.api_keys.write_text("nonsense")
    wait_for(lambda: "the API keys were not read again" in cluster.log("gw-1"), "a line in the log", 5.0)
    assert client.get("/v1/models", headers=bearer(newest)).status_code == 200
    assert client.get("/v1/models").status_code == 401
    cluster.home.api_keys.write_bytes(content)
    # Without a file, none is asked for: on loopback as before.
    cluster.home.api_keys.unlink()
    becomes(client, 200)


def test_a_gateway_that_is_open_starts_with_keys_only(tmp_path: Path):
    config = 'version = 1\n[gateway]\nid = "gw-1"\nhttp = "0.0.0.0:0"\n'
    cluster = Cluster(tmp_path / "home", config)
    try:
        assert cluster.start("gateway", "gw-1").wait(timeout=PATIENCE_S) == ExitCode.MISCONFIGURED
        assert "make one (clusterctl keys create NAME)" in cluster.log("gw-1")
        key = keys(cluster, "create", "alice")
        cluster.start("gateway", "gw-1")
        url = cluster.url().replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            assert client.get("/v1/models").status_code == 401
            assert client.get("/v1/models", headers=bearer(key)).status_code == 200
            # Where the file goes, nobody is let in, rather than everybody.
            cluster.home.api_keys.unlink()
            becomes(client, 401, key)
            assert client.get("/v1/models").status_code == 401
    finally:
        cluster.stop()


def test_keys_that_others_may_read_keep_a_gateway_from_starting(tmp_path: Path):
    cluster = Cluster(tmp_path / "home", config_text(""))
    keys(cluster, "create", "alice")
    cluster.home.api_keys.chmod(0o644)
    assert cluster.start("gateway", "gw-1").wait(timeout=PATIENCE_S) == ExitCode.MISCONFIGURED
    assert "chmod 600" in cluster.log("gw-1")
