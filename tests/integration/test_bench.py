"""`clusterctl bench` before a real gateway: its figures, its bounds, its keys, its end by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, wait_for
from tests.integration.operating import Operator, operating

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
BENCH = ("bench", "--model", "fake-model", "--max-tokens", "16", "--prompt-tokens", "40")


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with operating() as operator:
        operator.init("fake-1", "fake-2", decode_tokens_per_s="50")
        operator.run("up", "--wait")
        yield operator


def test_the_figures_are_of_all_requests_by_level_and_worker(operator, tmp_path):
    file = tmp_path / "bench.json"
    table = operator.run(*BENCH, "--concurrency", "1,4", "--requests", "8", "--json", str(file))
    found = json.loads(file.read_text())
    assert [level["concurrency"] for level in found["levels"]] == [1, 4]
    for level in found["levels"]:
        total = level["total"]
        assert (total["requests"], total["errors"], total["tokens"]) == (8, {}, 8 * 16)
        assert 20 <= level["prompt_tokens"] <= 60
        assert 0 < total["first_token_s"]["p50"] <= total["first_token_s"]["p99"]
        assert total["gap_s"]["p50"] > 0
        assert total["tokens_per_s"]["p50"] >= total["tokens_per_s"]["p95"] > 0
        assert sum(worker["requests"] for worker in level["workers"].values()) == 8
        assert level["workers"].keys() <= {"fake-1", "fake-2"}
        assert not level["cut_short"]
    assert "fake-1" in table
    assert "\x1b" not in table


def test_what_is_refused_is_told_with_its_reason_before_anything_is_measured(operator):
    assert "model_not_found" in operator.run("bench", "--model", "nothing", code=3)
    assert "numbers of 1 to" in operator.run(*BENCH, "--concurrency", "1,x", code=2)
    assert "cannot be written" in operator.run(*BENCH, "--json", "/no/such/dir/x", code=3)
    assert "no gateway 'gw-9'" in operator.run(*BENCH, "--gateway", "gw-9", code=3)


def test_keys_come_from_a_file_or_the_environment_and_count(operator, tmp_path, monkeypatch):
    key = operator.run("keys", "create", "alice", "--model", "other").split()[0]
    try:
        models = operator.url() + "/v1/models"
        wait_for(lambda: httpx.get(models).status_code == 401, "the gateway to know the key")
        file = tmp_path / "key"
        file.write_text(key)
        file.chmod(0o600)
        refused = operator.run(*BENCH, "--key-file", str(file), code=3)
        monkeypatch.setitem(operator.environ, "STUDIOFLEET_API_KEY", key)
        assert operator.run(*BENCH, code=3) == refused
        assert "the first request failed" in refused
        file.chmod(0o644)
        assert "chmod" in operator.run(*BENCH, "--key-file", str(file), code=3)
    finally:
        operator.run("keys", "revoke", "alice")
        operator.home.api_keys.unlink()


def test_a_level_ends_with_its_time_and_ctrl_c_shows_what_was_measured(operator):
    long = ("bench", "--model", "fake-model", "--max-tokens", "20000", "--requests", "1000")
    shown = operator.run(*long, "--concurrency", "2", "--limit", "1", code=1)
    assert "cut short" in shown
    assert "given_up" in shown
    bench = operator.begin(*long, "--concurrency", "2")
    busy = wait_for(lambda: sum(w["running"] or 0 for w in operator.status()["workers"]) == 2, "the load")
    assert busy
    os.killpg(bench.pid, signal.SIGINT)
    shown, _ = bench.communicate(timeout=PATIENCE_S)
    assert bench.returncode == 130, shown
    assert "given_up" in shown
    assert "Traceback" not in shown
    wait_for(lambda: not any(w["running"] for w in operator.status()["workers"]), "the load to be gone")
