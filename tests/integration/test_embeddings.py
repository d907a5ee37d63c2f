"""Embeddings, rerank and score through real processes: official client, loss of a worker, places, errors."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.integration.cluster import Cluster, chat, config_text, fake_worker, running, script, wait_for
from tests.integration.operating import operating

pytestmark = pytest.mark.integration

DIMENSIONS = 32


def worker(worker_id: str, task: str, model: str, **options: Any) -> str:
    options |= {"task": task, "dimensions": DIMENSIONS}
    return fake_worker(worker_id, model=model, engine_options=options, max_model_len=50, max_num_seqs=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = config_text(
        worker("e-1", "embed", "embedder", prefill_tokens_per_s=20_000)
        + worker("e-2", "embed", "embedder", prefill_tokens_per_s=20_000)
        + worker("r-1", "rerank", "ranker")
        + fake_worker("w-1", model="writer")
    )
    with running(config, "e-1", "e-2", "r-1", "w-1") as found:
        yield found


@pytest.fixture
def http(cluster: Cluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url(), timeout=60) as found:
        yield found


@pytest.fixture
def loose(cluster: Cluster) -> Iterator[openai.OpenAI]:
    """The strict one takes base64, for which it asks by itself, for a mistake: it decodes later."""
    with openai.OpenAI(base_url=cluster.url() + "/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=cluster.url() + "/v1", api_key="none", _strict_response_validation=True, max_retries=0
    ) as found:
        yield found


def test_check_25_base64_is_float_in_order_with_length_one(client: openai.OpenAI, loose: openai.OpenAI):
    texts = [f"text number {number}" for number in range(20)]
    coded = loose.embeddings.create(model="embedder", input=texts)
    plain = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
    assert [entry.index for entry in plain.data] == list(range(20))
    assert [entry.embedding for entry in coded.data] == [entry.embedding for entry in plain.data]
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == 60
    for entry in plain.data:
        assert len(entry.embedding) == DIMENSIONS
        assert math.isclose(math.hypot(*entry.embedding), 1, abs_tol=1e-6)
    alone = loose.embeddings.create(model="embedder", input=texts[7])
    assert alone.data[0].embedding == plain.data[7].embedding


def test_check_25_dimensions_and_token_ids(loose: openai.OpenAI):
    whole = loose.embeddings.create(model="embedder", input="a few words").data[0].embedding
    cut = loose.embeddings.create(model="embedder", input="a few words", dimensions=8).data[0].embedding
    length = math.hypot(*whole[:8])
    assert cut == pytest.approx([number / length for number in whole[:8]], abs=1e-6)
    with pytest.raises(openai.BadRequestError) as caught:
        loose.embeddings.create(model="embedder", input="a", dimensions=DIMENSIONS + 1)
    assert (caught.value.param, caught.value.code) == ("dimensions", "unsupported_parameter")
    found = loose.embeddings.create(model="embedder", input=[[1, 2], [3]])
    assert [math.isclose(math.hypot(*entry.embedding), 1, abs_tol=1e-6) for entry in found.data] == [True] * 2
    assert found.usage.prompt_tokens > 0


def test_ollamas_words_bring_the_same_vectors(loose: openai.OpenAI, http: httpx.Client):
    texts = ["a few words", "others"]
    wanted = loose.embeddings.create(model="embedder", input=texts).data
    told = http.post("/api/embed", json={"model": "embedder", "input": texts}).json()
    assert told["embeddings"] == [entry.embedding for entry in wanted]
    assert told["prompt_eval_count"] == 4
    one = http.post("/api/embeddings", json={"model": "embedder", "prompt": texts[0]}).json()
    assert one == {"embedding": wanted[0].embedding}
    long = http.post("/api/embed", json={"model": "embedder", "input": "word " * 60, "truncate": False})
    assert (long.status_code, list(long.json())) == (400, ["error"])


def test_2048_inputs_at_once(client: openai.OpenAI):
    texts = [f"number {number}" for number in range(2048)]
    answer = client.embeddings.create(model="embedder", input=texts, encoding_format="float")
    assert [entry.index for entry in answer.data] == list(range(2048))
    assert len({tuple(entry.embedding) for entry in answer.data}) == 2048


def test_an_input_that_is_too_long_is_named(http: httpx.Client):
    body = {"model": "embedder", "input": ["fine", "word " * 60]}
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")
    assert "maximum context length is 50 tokens" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "able"),
    [
        ("/v1/embeddings", {"model": "writer", "input": "x"}, "embedder"),
        ("/v1/rerank", {"model": "embedder", "query": "x", "documents": ["y"]}, "ranker"),
        ("/v1/score", {"model": "writer", "text_1": "x", "text_2": "y"}, "ranker"),
        ("/v1/chat/completions", chat("hi", model="embedder"), "writer"),
        ("/v1/completions", {"model": "ranker", "prompt": "hi"}, "writer"),
    ],
)
def test_a_model_for_another_task_is_refused_with_those_that_can(
    http: httpx.Client, path: str, body: dict[str, Any], able: str
):
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"
    assert f"models that can: {able}" in answer.json()["error"]["message"]


def test_the_list_of_models_tells_what_each_is_for(http: httpx.Client):
    told = {model["id"]: model["task"] for model in http.get("/v1/models").json()["data"]}
    assert told == {"embedder": "embed", "ranker": "rerank", "writer": "generate"}
    kinds = {model["id"]: model["type"] for model in http.get("/api/v0/models").json()["data"]}
    assert kinds == {"embedder": "embeddings", "ranker": "embeddings", "writer": "llm"}


def test_documents_are_ranked(http: httpx.Client):
    body = {"query": "red apple", "documents": ["a car", "a red car", "the red apple"], "top_n": 2}
    answer = http.post("/v1/rerank", json=body)  # the only model that can is meant
    assert answer.status_code == 200
    assert [(entry["index"], entry["relevance_score"]) for entry in answer.json()["results"]] == [
        (2, 1.0),
        (1, 0.5),
    ]
    assert answer.json()["results"][0]["document"] == {"text": "the red apple"}
    assert "document" not in http.post("/v2/rerank", json=body).json()["results"][0]
    pairs = {"model": "ranker", "text_1": ["red", "blue"], "text_2": ["a red car", "a red car"]}
    assert [entry["score"] for entry in http.post("/score", json=pairs).json()["data"]] == [1.0, 0.0]


def test_more_requests_than_places_wait_in_line_and_all_workers_serve(cluster: Cluster):
    def ask(number: int) -> tuple[int, str]:
        text = [f"text {number}"] * 20
        answer = httpx.post(
            cluster.url() + "/v1/embeddings", json={"model": "embedder", "input": text}, timeout=60
        )
        return answer.status_code, answer.headers["x-worker-id"]

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, range(24)))
    assert {status for status, _worker in found} == {200}
    assert {worker for _status, worker in found} == {"e-1", "e-2"}
    cluster.wait_idle()


def test_the_log_and_the_metrics_tell_of_them(cluster: Cluster, http: httpx.Client):
    before = counted(http)
    http.post(
        "/v1/embeddings", json={"model": "embedder", "input": "one two"}, headers={"x-request-id": "me"}
    )

    def written() -> str:
        return next((line for line in cluster.log("gw-1").splitlines() if "request me:" in line), "")

    line = wait_for(written, "the line in the log, which comes after the answer")
    assert "POST /v1/embeddings -> 200" in line
    assert "model embedder" in line
    assert "prompt_tokens 2" in line
    assert counted(http) == before + 2


def counted(http: httpx.Client) -> float:
    name = 'vllm:prompt_tokens_total{model_name="embedder"}'
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_one_whose_worker_is_killed_is_answered_by_another(cluster: Cluster, http: httpx.Client):
    """In a cluster of its own order: it comes last, as its worker does not come back."""
    text = script(exit_at=0, once=True)
    expected = http.post("/v1/embeddings", json={"model": "embedder", "input": "x"}).json()["data"][0]
    answer = http.post("/v1/embeddings", json={"model": "embedder", "input": [text, "x"]})
    assert answer.status_code == 200
    assert answer.json()["data"][1]["embedding"] == expected["embedding"]
    other = {"e-1": "e-2", "e-2": "e-1"}[answer.headers["x-worker-id"]]
    assert cluster.wait_exit(other) == -signal.SIGKILL


def test_an_operator_is_shown_what_such_a_worker_makes():
    with operating() as operator:
        operator.run("init", "--workers", "0", "--http", "127.0.0.1:0")
        operator.run("up", "--wait")
        for task, shown in (("embed", "a vector of "), ("rerank", "a score of ")):
            options = ("--served-name", task, "--engine-option", f"task={task}", "--wait")
            assert f"{task}-1 answers: '{shown}" in operator.add(f"{task}-1", *options)
