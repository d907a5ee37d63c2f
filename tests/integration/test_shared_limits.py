"""Two gateways that count together what keys take, on a real server of Redis' kind."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, chat, config_text, fake_worker, running, script, wait_for
from tests.integration.test_keys import away_from_the_minutes_end, bearer, becomes, keys

SERVER = shutil.which("valkey-server") or shutil.which("redis-server")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(SERVER is None, reason="neither valkey-server nor redis-server is installed"),
    pytest.mark.skipif(importlib.util.find_spec("redis") is None, reason="redis is not installed"),
]

PASSWORD = "a password of this test"
GATEWAYS = ("gw-1", "gw-2")


class Server:
    """A storage on a port of its own, without a file."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {"port": self.port, "bind": "127.0.0.1", "save": "", "requirepass": PASSWORD}
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self._process = subprocess.Popen([str(SERVER), *words], stdout=subprocess.DEVNULL)
        wait_for(self._listens, "the server to listen")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


def test_gateways_count_together_and_alone_when_the_storage_is_away(server: Server, tmp_path: Path):
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    limits = (
        f'[limits]\nstorage = "valkey://127.0.0.1:{server.port}/0"\nstorage_password_file = "{password}"\n'
    )
    config = config_text(fake_worker("w-1"), gateways=GATEWAYS, extra=limits)
    body = chat(script(tokens=["a"], repeat=3))
    with contextlib.ExitStack() as closing, running(config, "w-1", gateways=GATEWAYS) as cluster:
        requests = keys(cluster, "create", "alice", "--requests-per-minute", "6")
        tokens = keys(cluster, "create", "bob", "--tokens-per-minute", "3")
        urls = [cluster.url(gateway) for gateway in GATEWAYS]
        clients = [closing.enter_context(httpx.Client(base_url=u, timeout=PATIENCE_S)) for u in urls]
        for client in clients:
            becomes(client, 401)  # so the keys are known there

        def ask(number: int, key: str) -> httpx.Response:
            return clients[number % 2].post("/v1/chat/completions", json=body, headers=bearer(key))

        answers = [ask(number, requests) for number in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 6 + [429] * 2
        left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
        assert left == ["5", "4", "3", "2", "1", "0", "0", "0"]
        assert ask(0, tokens).status_code == 200
        wait_for(lambda: ask(1, tokens).status_code == 429, "the other gateway to know", 5.0)

        server.end()
        away_from_the_minutes_end()
        alone = [ask(0, requests) for _ in range(8)]
        assert [answer.status_code for answer in alone] == [200] * 6 + [429] * 2
        assert max(answer.elapsed.total_seconds() for answer in alone) < 5.0
        assert "so this gateway counts alone" in cluster.log("gw-1")
        assert PASSWORD not in cluster.log("gw-1")
