"""Event loops that hang in processes that live: they end by themselves, so that they are started again."""

from __future__ import annotations

import signal

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, chat, config_text, fake_worker, running, script

pytestmark = pytest.mark.integration

_SOON = "[heartbeat]\nloop_stall_s = 2.0\n"


def test_a_worker_whose_loop_hangs_ends_and_its_request_goes_on():
    config = config_text(fake_worker("w-1") + fake_worker("w-2"), extra=_SOON)
    with running(config, "w-1", "w-2") as cluster:
        body = chat(script(tokens=["a", "b"], block_ms=600_000, once=True))
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert answer.json()["choices"][0]["message"]["content"] == "ab"
        other = answer.headers["x-worker-id"]
        hung = "w-1" if other == "w-2" else "w-2"
        assert cluster.wait_exit(hung) == 70
        assert "stood still for 2 s" in cluster.log(hung)
        assert "worker/engine/fake" in cluster.log(hung)
        assert cluster.processes[other].poll() is None


def test_a_gateway_whose_loop_hangs_ends():
    with running(config_text("", extra=_SOON), gateways=()) as cluster:
        gateway = cluster.start("tests.faults.hanging_gateway", "gw-1")
        assert httpx.get(cluster.url() + "/health").status_code == 200
        gateway.send_signal(signal.SIGUSR1)
        assert cluster.wait_exit("gw-1") == 70
        assert "hanging_gateway" in cluster.log("gw-1")
