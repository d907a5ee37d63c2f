"""The routes of Ollama and LM Studio, as their clients ask them."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.integration.cluster import script

pytestmark = pytest.mark.integration

MODEL = "fake-model"


def test_a_chat_is_streamed_unless_told_otherwise(http: httpx.Client):
    body = {"model": MODEL, "messages": [{"role": "user", "content": script(tokens=["a", "b"])}]}
    streamed = http.post("/api/chat", json=body)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "ab"
    assert lines[-1]["done"]
    whole = http.post("/api/chat", json=body | {"stream": False}).json()
    assert (whole["message"]["content"], whole["done"]) == ("ab", True)
    assert whole["prompt_eval_count"] == lines[-1]["prompt_eval_count"] > 0


def test_a_text_is_generated(http: httpx.Client):
    body = {"model": MODEL, "prompt": script(tokens=["a", "b"]), "stream": False, "raw": True}
    assert http.post("/api/generate", json=body).json()["response"] == "ab"


def test_models_are_listed_and_shown(http: httpx.Client):
    assert [model["name"] for model in http.get("/api/tags").json()["models"]][:2] == [
        MODEL,
        "org/other:latest",
    ]
    assert [model["name"] for model in http.get("/api/ps").json()["models"]][:2] == [
        MODEL,
        "org/other:latest",
    ]
    shown = http.post("/api/show", json={"model": MODEL}).json()
    assert shown["model_info"]["mlx.context_length"] == 4096
    assert shown["capabilities"] == ["completion", "tools"]
    assert http.get("/api/version").json()["version"]
    answer = http.post("/api/show", json={"model": "nope"})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


def test_lm_studios_list(http: httpx.Client):
    models = http.get("/api/v0/models").json()["data"]
    assert (models[0]["id"], models[0]["type"], models[0]["state"]) == (MODEL, "llm", "loaded")
    assert models[0]["loaded_context_length"] == 4096
    assert {model["id"]: model["state"] for model in models}["loading"] == "not-loaded"
    assert http.get("/api/v0/models/org/other:latest").json()["id"] == "org/other:latest"
