"""Encoders behind a real gateway, with OpenAI's client: their vectors, loss of a worker, memory."""

import importlib.util
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import openai
import pytest

from clusterctl.model_sizes import worker_need
from protocol.config import parse
from tests.integration.cluster import config_text, running, wait_for
from tests.mlx import tiny_encoders
from tests.mlx.test_embeddings import TEXTS, cosine, directly

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]
PATIENCE_S = 240.0


def test_vectors_are_the_models_own_also_after_a_worker_was_killed_in_the_middle(tmp_path):
    vectors = tiny_encoders.encoder_folder(tmp_path / "vectors", tiny_encoders.BERT, tiny_encoders.MEAN)
    ranker = tiny_encoders.encoder_folder(tmp_path / "ranker", tiny_encoders.RANKER)
    config = config_text(
        "".join(
            f'[[workers]]\nid = "{worker_id}"\nmodel = "{path}"\nengine = "embeddings"\n'
            for worker_id, path in (("e-1", vectors), ("e-2", vectors), ("r-1", ranker))
        )
    )
    for worker in parse(config).workers:
        need = worker_need(worker, tmp_path)
        assert (need.unknown, need.kv) == ("", 0)
        assert need.weights > 0
    expected, _tokens = directly(vectors, TEXTS)
    with running(config, "e-1", "e-2", "r-1", patience_s=PATIENCE_S) as cluster:
        listed = httpx.get(cluster.url() + "/v1/models").json()["data"]
        assert {model["id"]: model["task"] for model in listed} == {"vectors": "embed", "ranker": "rerank"}
        ranked = httpx.post(
            cluster.url() + "/v1/rerank",
            json={"query": "red", "documents": ["a cat", "a red sky"]},
            timeout=PATIENCE_S,
        )
        assert ranked.status_code == 200
        assert sorted(entry["index"] for entry in ranked.json()["results"]) == [0, 1]
        client = openai.OpenAI(base_url=cluster.url() + "/v1", api_key="none", max_retries=0)
        with client, ThreadPoolExecutor(1) as pool:

            def busy(long):
                """The worker that has it; True when it is over."""
                states = {name: cluster.worker(name)["running"] for name in ("e-1", "e-2")}
                return next((name for name, running in states.items() if running), long.done())

            for _try in range(20):  # one that is over before it is seen is asked again
                long = pool.submit(client.embeddings.create, model="vectors", input=TEXTS * 32)
                found = wait_for(partial(busy, long), "a worker to have it", PATIENCE_S)
                if found is not True:
                    break
            assert found in ("e-1", "e-2")
            cluster.signal(found, signal.SIGKILL)
            answer = long.result(timeout=PATIENCE_S)
            assert len(answer.data) == 32 * len(TEXTS)
            for entry in answer.data:
                assert cosine(entry.embedding, expected[entry.index % len(TEXTS)]) >= 0.9999
        cluster.wait_idle()
