"""Models that come and go on real processes: under a budget, by demand, with one gateway and with two."""

from __future__ import annotations

import asyncio
import random
import threading

import httpx
import pytest

from tests.integration.cluster import chat, config_text, sse, text_of, wait_for
from tests.integration.residents import (
    MODELS,
    Watch,
    ask,
    ask_all,
    idle_fleet,
    loads,
    loads_without_use,
    on_demand,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

FOR_TWO = '[residency]\nmemory_budget_mb = 200\n[log]\nlevel = "debug"\n'


def test_a_cold_model_is_loaded_for_whoever_waits_and_its_state_is_shown():
    with idle_fleet(config_text(on_demand("a", load_s=1.5)), "a") as cluster:
        models = cluster.url() + "/v1/models/a"
        assert httpx.get(models).json()["state"] == "not-loaded"
        assert httpx.get(cluster.url() + "/health/ready").status_code == 200
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(ask(cluster, "a").status_code))
        asking.start()
        wait_for(lambda: httpx.get(models).json()["state"] == "loading", "the load to show")
        asking.join()
        assert answers == [200]
        assert httpx.get(models).json()["state"] == "loaded"


def test_three_models_under_a_budget_for_two_are_freed_in_the_order_of_their_last_use():
    config = config_text("".join(on_demand(name) for name in MODELS), extra=FOR_TWO)
    with idle_fleet(config, *MODELS) as cluster, Watch(cluster) as watch:
        rng = random.Random(7)
        resident: list[str] = []
        expected = 0
        for model in (rng.choice(MODELS) for _ in range(30)):
            if model not in resident:
                expected += 1
                resident = resident[-1:]
            resident = [name for name in resident if name != model] + [model]
            assert ask(cluster, model).status_code == 200
            held = {w["id"] for w in cluster.state()["workers"] if w["state"] == "ready"}
            assert held == set(resident)
        assert sum(loads(cluster).values()) == expected
        assert loads_without_use(cluster) == 0
    assert watch.looks > 100
    assert watch.most_mb == 200


@pytest.mark.parametrize("gateways", [("gw-1",), ("gw-1", "gw-2")])
def test_sixty_mixed_requests_for_three_models_under_a_budget_for_two(gateways: tuple[str, ...]):
    config = config_text(
        "".join(on_demand(name, max_num_seqs=2) for name in MODELS),
        gateways=gateways,
        extra=FOR_TWO,
    )
    with idle_fleet(config, *MODELS, gateways=gateways) as cluster, Watch(cluster) as watch:
        rng = random.Random(11)
        requests = [(rng.choice(MODELS), rng.uniform(0, 8)) for _ in range(60)]
        urls = [cluster.url(gateway) for gateway in gateways]
        assert asyncio.run(ask_all(urls, requests)) == {"ok": 60}
        counts = loads(cluster)
        assert loads_without_use(cluster) == 0
        cluster.wait_idle()
    assert watch.most_mb == 200
    assert all(counts.values())
    assert sum(counts.values()) <= 30, counts


def test_a_stream_for_a_cold_model_is_kept_alive_while_it_loads():
    extra = "[limits]\nkeepalive_s = 0.3\n[queue]\ntimeout_s = 0.5\n"
    with idle_fleet(config_text(on_demand("a", load_s=2.5), extra=extra), "a") as cluster:
        body = chat("hello", model="a", max_tokens=3, stream=True)
        answer = httpx.post(cluster.url() + "/v1/chat/completions", json=body, timeout=100)
        assert answer.status_code == 200
        lines = answer.text.splitlines()
        assert sum(line.startswith(":") for line in lines) >= 3
        assert sse(lines)[-1] == "[DONE]"
        assert text_of(sse(lines))


def test_a_count_of_tokens_waits_for_a_cold_model_too():
    with idle_fleet(config_text(on_demand("a", load_s=1.0)), "a") as cluster:
        body = {"model": "a", "messages": [{"role": "user", "content": "hello"}]}
        answer = httpx.post(cluster.url() + "/v1/messages/count_tokens", json=body, timeout=100)
        assert answer.status_code == 200, answer.text
        assert answer.json()["input_tokens"] > 0


def test_a_client_that_does_not_wait_is_told_when_to_come_again_in_every_dialect():
    with idle_fleet(config_text(on_demand("a", load_s=60.0)), "a") as cluster:
        refused = ask(cluster, "a", **{"x-wait-for-model": "false"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        wait_for(lambda: cluster.worker("a")["state"] == "loading", "the load to begin all the same")
        message = {"model": "a", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
        headers = {"x-wait-for-model": "false", "anthropic-version": "2023-06-01"}
        other = httpx.post(cluster.url() + "/v1/messages", json=message, headers=headers, timeout=100)
        assert other.status_code == 503
        count = cluster.url() + "/v1/messages/count_tokens"
        assert httpx.post(count, json=message, headers=headers, timeout=100).status_code == 503
        wrong = ask(cluster, "a", **{"x-wait-for-model": "maybe"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-wait-for-model")


def test_fc_37_a_load_longer_than_every_time_limit_is_waited_for_and_later_requests_succeed():
    extra = "[queue]\ntimeout_s = 0.5\n"
    with idle_fleet(config_text(on_demand("a", load_s=4.0, load_stall_s=2.0), extra=extra), "a") as cluster:
        assert ask(cluster, "a").status_code == 200
        assert ask(cluster, "a").status_code == 200
        assert loads(cluster)["a"] == 1
