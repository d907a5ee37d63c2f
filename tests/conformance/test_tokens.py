"""Counts of tokens, and the prompts that they are counted of."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.cluster import script

pytestmark = pytest.mark.integration

MODEL = "fake-model"
TURNS = [{"role": "user", "content": "hello there"}]


def test_a_text_goes_to_tokens_and_back(http: httpx.Client):
    found = http.post(
        "/tokenize", json={"model": MODEL, "prompt": "one two", "return_token_strs": True}
    ).json()
    assert (found["count"], found["token_strs"], found["max_model_len"]) == (2, ["one", " two"], 4096)
    back = http.post("/v1/detokenize", json={"model": MODEL, "tokens": found["tokens"]}).json()
    assert back == {"prompt": "one two", "content": "one two"}
    answer = http.post("/v1/completions", json={"model": MODEL, "prompt": found["tokens"], "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == 2


def test_a_template_is_applied(http: httpx.Client):
    found = http.post("/apply-template", json={"model": MODEL, "messages": TURNS}).json()
    assert "hello there" in found["prompt"]


def test_fc_82_the_count_equals_the_usage_of_the_real_call(http: httpx.Client):
    tool = {"name": "f", "description": "finds", "input_schema": {"type": "object", "properties": {}}}
    body: dict[str, Any] = {
        "model": MODEL,
        "system": [{"type": "text", "text": "You are an agent."}],
        "messages": [
            *TURNS,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}]},
            {"role": "user", "content": script(tokens=["a"])},
        ],
        "tools": [tool],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    count = http.post("/v1/messages/count_tokens?beta=true", json=body).json()
    assert set(count) == {"input_tokens"}
    for _cold_and_warm in range(2):
        usage = http.post("/v1/messages", json=body | {"max_tokens": 5}).json()["usage"]
        assert count["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    less = http.post("/v1/messages/count_tokens", json={**body, "tools": []}).json()
    assert less["input_tokens"] < count["input_tokens"]


def test_faults_are_told_in_the_shape_of_the_dialect(http: httpx.Client):
    answer = http.post("/v1/messages/count_tokens", json={"model": MODEL, "messages": []})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    answer = http.post("/detokenize", json={"model": MODEL, "tokens": [2**62]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
    assert http.post("/tokenize", json={"model": "nope", "prompt": ""}).status_code == 404
    loading = http.post("/tokenize", json={"model": "loading", "prompt": ""})
    assert loading.json()["error"]["code"] in ("model_loading", "no_worker_available")
    assert loading.headers["retry-after"]
