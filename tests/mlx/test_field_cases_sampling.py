"""Faults of sampling that others met in the field, tried on a small random model behind a real gateway."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.faults.small_model import make_model
from tests.integration.cluster import Cluster, chat, config_text, running, sse

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed"),
]

PATIENCE_S = 120.0
CONTEXT = 256
END = 256
"""The id of the token that ends an answer; the ids below are bytes."""
ONE_OR_MORE = [{}, {"top_logprobs": None}, {"top_logprobs": 0}, {"top_logprobs": 1}, {"top_logprobs": 20}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    folder = make_model(tmp_path_factory.mktemp("models") / "small")
    worker = f'[[workers]]\nid = "w"\nmodel = "{folder}"\nserved_name = "m"\nmax_num_seqs = 8\n'
    with running(config_text(worker), "w", patience_s=PATIENCE_S) as found:
        yield found


def post(cluster: Cluster, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(cluster.url() + path, json=body, timeout=PATIENCE_S)


def ask(cluster: Cluster, content: str = "hi", **fields: Any) -> dict[str, Any]:
    answer = post(cluster, "/v1/chat/completions", chat(content, model="m", **fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(cluster: Cluster, path: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
    body = chat("hi", model="m", **fields) if "prompt" not in fields else {"model": "m", **fields}
    answer = post(cluster, path, body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def text(cluster: Cluster, **fields: Any) -> str:
    settings = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True, **fields}
    found = ask(cluster, **settings)["choices"][0]["message"]["content"]
    assert isinstance(found, str)
    return found


# FC-52: logprobs accepted, then dropped in streams
@pytest.mark.parametrize("more", ONE_OR_MORE)
def test_fc_52_log_probabilities_come_for_each_token_streamed_or_not(cluster: Cluster, more: dict[str, Any]):
    fields = {"seed": 5, "temperature": 1.0, "max_tokens": 30, "logprobs": True, "ignore_eos": True, **more}
    answer = ask(cluster, **fields)
    choice, count = answer["choices"][0], answer["usage"]["completion_tokens"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == count == 30
    check(entries, more.get("top_logprobs") or 0)
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert joined.decode(errors="replace").rstrip("\ufffd") == choice["message"]["content"].rstrip("\ufffd")
    body = chat("hi", model="m", stream=True, **fields)
    with httpx.stream(
        "POST", cluster.url() + "/v1/chat/completions", json=body, timeout=PATIENCE_S
    ) as answer_stream:
        chunks = [event for event in sse(list(answer_stream.iter_lines())) if event != "[DONE]"]
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in entries]
    check(streamed, more.get("top_logprobs") or 0)


def check(entries: list[dict[str, Any]], alternatives: int) -> None:
    for entry in entries:
        assert -9999.0 <= entry["logprob"] <= 0
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(values) == alternatives
        assert values == sorted(values, reverse=True)
        assert all(isinstance(byte, int) for top in entry["top_logprobs"] for byte in top["bytes"])


# FC-52: with a stop string, the end token, and all tokens but one banned
def test_fc_52_log_probabilities_with_stops_and_bans(cluster: Cluster):
    whole = ask(cluster, temperature=0, max_tokens=30, ignore_eos=True)["choices"][0]["message"]["content"]
    stopped = ask(cluster, temperature=0, max_tokens=30, ignore_eos=True, logprobs=True, stop=[whole[10:13]])
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert len(stopped["choices"][0]["logprobs"]["content"]) == stopped["usage"]["completion_tokens"]
    bans = {str(token): -100 for token in range(CONTEXT + 2) if token != 65}
    only = ask(cluster, max_tokens=5, logprobs=True, top_logprobs=20, logit_bias={**bans, "65": 100})
    entries = only["choices"][0]["logprobs"]["content"]
    assert len({entry["token"] for entry in entries}) == 1
    check(entries, 20)
    ended = ask(cluster, logprobs=True, max_tokens=9, logit_bias={str(END): 100})
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert [entry["bytes"] for entry in ended["choices"][0]["logprobs"]["content"]] == [[]]
    assert ended["choices"][0]["logprobs"]["content"][0]["token"] == "<|end|>"


# FC-52: what cannot be done is refused everywhere
@pytest.mark.parametrize(
    "fields",
    [{"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}, {"top_logprobs": 1}],
)
@pytest.mark.parametrize("stream", [False, True])
def test_fc_52_numbers_of_alternatives_that_cannot_be_are_refused(cluster: Cluster, fields, stream):
    assert refused(cluster, stream=stream, **fields)["param"] == "top_logprobs"


# FC-54: seed has no effect, or depends on the neighbours
def test_fc_54_a_seed_gives_one_answer_whoever_runs_beside_it(cluster: Cluster):
    alone = text(cluster, seed=42)
    assert text(cluster, seed=42) == alone
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(text, cluster, **fields) for fields in ({}, {}, {}, {"seed": 7})]
        beside = pool.submit(text, cluster, seed=42)
        assert beside.result() == alone
        unseeded = [each.result() for each in others[:3]]
    assert len({*unseeded, alone}) == 4
    assert len({text(cluster, seed=seed) for seed in range(1, 6)}) == 5


# FC-54: after a restart, and with a warm and a cold prefix
def test_fc_54_a_seed_gives_one_answer_after_a_restart(cluster: Cluster):
    question = "a long beginning that is worth to be kept " * 2
    settings = {"temperature": 1.0, "max_tokens": 24, "seed": 9, "ignore_eos": True}
    cold, warm = ask(cluster, question, **settings), ask(cluster, question, **settings)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    cluster.signal("w", signal.SIGTERM)
    cluster.wait_exit("w")
    cluster.start("worker", "w")
    cluster.wait_ready("w", patience_s=PATIENCE_S)
    again = ask(cluster, question, **settings)
    texts = {answer["choices"][0]["message"]["content"] for answer in (cold, warm, again)}
    assert len(texts) == 1


# FC-54: seeds that are none
@pytest.mark.parametrize("seed", [2**64, 1.5, "42"])
def test_fc_54_seeds_that_are_none_are_refused(cluster: Cluster, seed: object):
    assert refused(cluster, seed=seed)["param"] == "seed"
    assert text(cluster, seed=-1) == text(cluster, seed=-1)


# FC-80: no context check: prefill past the model's limit until it aborts
@pytest.mark.parametrize("beyond", [0, 1, 9 * CONTEXT])
def test_fc_80_a_prompt_beyond_the_context_is_refused_with_both_numbers(cluster: Cluster, beyond: int):
    error = refused(cluster, "/v1/completions", prompt=[65] * (CONTEXT + beyond), max_tokens=1)
    assert error["code"] == "context_length_exceeded"
    assert f"maximum context length is {CONTEXT} tokens" in error["message"]
    assert str(CONTEXT + beyond) in error["message"]


# FC-80: the prompt fits, and not all that is asked for
def test_fc_80_an_answer_is_cut_to_the_context(cluster: Cluster):
    for length in (CONTEXT - 1, CONTEXT - 20):
        body = {"model": "m", "prompt": [65] * length, "max_tokens": 10 * CONTEXT, "ignore_eos": True}
        answer = post(cluster, "/v1/completions", body).json()
        assert answer["usage"]["completion_tokens"] == CONTEXT - length
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"258": 1}}, "logit_bias"),
        ({"stop_token_ids": [258]}, "stop_token_ids"),
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [65, 2**31 - 1]}, "prompt"),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused_in_words(cluster: Cluster, fields, param):
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    error = refused(cluster, path, **fields)
    assert error["param"] == param
    assert "token ids that the model does not know" in error["message"]
    assert text(cluster, seed=1)


def test_several_answers_to_one_request_are_those_of_seeds_in_a_row(cluster: Cluster):
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    answer = ask(cluster, n=12, seed=100, **settings)
    found = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == list(range(12))
    assert found == [text(cluster, seed=100 + index, max_tokens=12) for index in range(12)]
    assert answer["usage"]["completion_tokens"] == 12 * 12
    assert answer["usage"]["prompt_tokens"] == ask(cluster, **settings)["usage"]["prompt_tokens"]
