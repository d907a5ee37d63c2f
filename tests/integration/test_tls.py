"""Clients over TLS: they are served, and every bound of a plain connection holds for theirs."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from clusterctl.admin import ActionError, act, read_state
from protocol.keys import ensure_admin_key
from protocol.states import ExitCode
from tests.certificates import certificate
from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    stream_chat,
    text_of,
    wait_for,
)
from tests.integration.raw_http import (
    connect,
    error_code,
    exchange,
    get,
    is_closed,
    parse,
    read_to_end,
    request,
)

pytestmark = pytest.mark.integration

LIMITS = """
[limits]
body_timeout_s = 1.5
stream_buffer_bytes = 20000
stream_stall_s = 1.5
max_connections = 50
"""
ENDLESS = chat(script(tokens=["x" * 2000], repeat=1_000_000, delay_ms=0.1), stream=True)
CLOSE = "Connection: close"


class Encrypted:
    """A cluster that is served over TLS."""

    def __init__(self, cluster: Cluster, cert: Path, key: Path) -> None:
        self.cluster = cluster
        self.cert = cert
        self.key = key
        self.url = cluster.url().split()[0]

    @property
    def context(self) -> ssl.SSLContext:
        """Of a client that trusts the certificate."""
        return ssl.create_default_context(cafile=self.cert)

    def idle(self) -> bool:
        state = read_state(self.cluster.home, "gw-1")
        assert state is not None
        running = [w.running + w.waiting for w in state.workers]
        return state.gateways[0].streams == 0 and not any(running)

    def descriptors(self) -> int:
        """Of the gateway. Linux tells; elsewhere the counters alone have to do."""
        folder = Path(f"/proc/{self.cluster.processes['gw-1'].pid}/fd")
        return len(list(folder.iterdir())) if folder.is_dir() else 0

    def is_ready(self) -> bool:
        state = read_state(self.cluster.home, "gw-1")
        return state is not None and [w.state for w in state.workers] == ["ready"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    cert, key = certificate(tmp_path_factory.mktemp("tls"), "gateway")
    tls = f'tls_cert = "{cert}"\ntls_key = "{key}"\n'
    with running(config_text(tls + fake_worker("w-1", max_num_seqs=4), extra=LIMITS), gateways=()) as cluster:
        ensure_admin_key(cluster.home)
        cluster.start("gateway", "gw-1")
        cluster.start("worker", "w-1")
        found = Encrypted(cluster, cert, key)
        wait_for(found.is_ready, "the worker to be ready")
        yield found
        wait_for(found.idle, "all counters to be zero")
        log = cluster.log("gw-1")
        assert "Traceback" not in log
        assert " ERROR asyncio" not in log


def tcp(here: Encrypted) -> socket.socket:
    parts = urlsplit(here.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S)


def test_clients_are_served_whole_answers_and_streams(here: Encrypted):
    assert here.url.startswith("https://127.0.0.1:")

    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=here.url, verify=here.context, timeout=PATIENCE_S) as client:
            body: dict[str, Any] = chat(script(tokens=["a"], repeat=100))
            streamed = [stream_chat(client, body) for _ in range(3)]
            assert [text_of(events) for events in await asyncio.gather(*streamed)] == ["a" * 100] * 3
            whole = await client.post("/v1/chat/completions", json=chat("hi " * 400_000, max_tokens=3))
            assert whole.status_code == 200

    asyncio.run(scenario())


def test_a_client_that_trusts_nobody_unknown_is_not_served(here: Encrypted):
    with pytest.raises(httpx.ConnectError, match="self-signed"):
        httpx.get(here.url + "/health")


def test_clusterctl_speaks_to_the_gateway_and_to_no_other(here: Encrypted):
    act(here.cluster.home, "gw-1", "reload")
    url_file = here.cluster.home.http_url("gw-1")
    written = url_file.read_text()
    url_file.write_text(f"{here.url}\n{'0' * 64}\n")
    try:
        assert read_state(here.cluster.home, "gw-1") is None
        with pytest.raises(ActionError, match="another certificate"):
            act(here.cluster.home, "gw-1", "reload")
    finally:
        url_file.write_text(written)


def test_plain_http_is_told_that_it_should_be_https(here: Encrypted):
    plain = here.url.replace("https", "http")
    status, code = error_code(exchange(plain, get("/v1/models")))
    assert (status, code) == (400, "plain_http")
    with tcp(here) as connection:
        connection.sendall(b"\x00\x01 neither one nor the other")
        assert is_closed(connection)


def test_handshakes_have_their_time(here: Encrypted):
    began = time.monotonic()
    with tcp(here) as silent, tcp(here) as begun:
        begun.sendall(b"\x16\x03\x01")
        for connection in (silent, begun):
            assert is_closed(connection)
    assert time.monotonic() - began >= 1.0


def test_clients_that_only_connect_keep_nobody_out(here: Encrypted):
    idle = [tcp(here) for _ in range(300)]
    try:
        assert httpx.get(here.url + "/health", verify=here.context, timeout=PATIENCE_S).status_code == 200
        assert is_closed(idle[0])
    finally:
        for connection in idle:
            connection.close()


def test_heads_have_their_time_and_their_length(here: Encrypted):
    with connect(here.url) as silent, connect(here.url) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nA: ")
        assert error_code(read_to_end(slow))[0] == 408
        assert is_closed(silent)
    answer = exchange(here.url, b"GET / HTTP/1.1\r\nA: " + b"x" * 65_520)
    assert parse(answer)[0] == 413


@pytest.mark.parametrize("tokens", [{"repeat": 1_000_000}, {"repeat": 2_500}])
def test_clients_that_never_read_are_cut_off_over_tls(here: Encrypted, tokens: dict[str, int]):
    before = here.descriptors()
    body = chat(script(tokens=["x" * 2000], delay_ms=0.1, **tokens), stream=True)
    readers = [connect(here.url, receive_buffer=4096) for _ in range(3)]
    for reader in readers:
        reader.sendall(request(body))
    wait_for(lambda: not here.idle(), "the requests to run")
    wait_for(here.idle, "the requests to be ended")
    wait_for(lambda: here.descriptors() <= before, "the connections to be closed")
    for reader in readers:
        assert not read_to_end(reader).endswith(b"0\r\n\r\n")
        reader.close()


def test_too_many_requests_sent_ahead_end_the_connection_over_tls(here: Encrypted):
    with connect(here.url) as connection:
        connection.sendall(request(ENDLESS) + get("/health") * 100)
        assert error_code(read_to_end(connection)) == (400, "invalid_http")
        wait_for(here.idle, "the request to be ended", 10.0)


def test_a_long_answer_reaches_a_slow_client_whole_though_the_connection_closes(here: Encrypted):
    body = chat(script(tokens=["x" * 1000], repeat=300))
    with connect(here.url, receive_buffer=65_536) as connection:
        connection.sendall(request(body, headers=[CLOSE]))
        time.sleep(0.5)
        status, headers, rest = parse(read_to_end(connection))
    assert (status, len(rest)) == (200, int(headers["content-length"]))


def test_idle_connections_give_way_to_new_ones_over_tls(here: Encrypted):
    idle = [connect(here.url) for _ in range(50)]
    try:
        for connection in idle:
            connection.sendall(get("/health"))
            assert connection.recv(65_536)
        assert httpx.get(here.url + "/health", verify=here.context, timeout=PATIENCE_S).status_code == 200
    finally:
        for connection in idle:
            connection.close()


def test_a_renewed_certificate_is_taken_and_a_wrong_one_is_not(here: Encrypted, tmp_path: Path):
    def presented() -> bytes:
        with connect(here.url) as connection:
            assert isinstance(connection, ssl.SSLSocket)
            return connection.getpeercert(binary_form=True) or b""

    before = presented()
    with connect(here.url) as kept:
        cert, key = certificate(tmp_path, "renewed")
        cert.replace(here.cert)
        wait_for(lambda: "the old one stays" in here.cluster.log("gw-1"), "half a renewal to be noticed")
        assert presented() == before
        key.replace(here.key)
        wait_for(lambda: presented() != before, "the new one to be presented")
        kept.sendall(get("/health", CLOSE))
        assert parse(read_to_end(kept))[0] == 200
    act(here.cluster.home, "gw-1", "reload")
    assert httpx.get(here.url + "/health", verify=here.context, timeout=PATIENCE_S).status_code == 200


def test_a_gateway_with_half_of_a_pair_does_not_start(tmp_path: Path):
    cert, _key = certificate(tmp_path, "one")
    _cert, other = certificate(tmp_path, "two")
    cluster = Cluster(tmp_path / "home", config_text(f'tls_cert = "{cert}"\ntls_key = "{other}"\n'))
    cluster.start("gateway", "gw-1")
    assert cluster.wait_exit("gw-1") == ExitCode.MISCONFIGURED
    assert "is not the key of the certificate" in cluster.log("gw-1")
