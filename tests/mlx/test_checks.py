"""Checks 4, 23 and 25 (tests/conformance lists them all) on the embedded model behind a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance import spoken
from tests.integration.cluster import config_text, running

PATIENCE_S = 240.0
ROOM = 12
"""Tokens of an answer: few, as they are slow."""
MODEL = "smollm2-135m"
QUESTION = "Once upon a time there was a sea 😀, and"


@pytest.fixture(scope="module")
def http(models: Any) -> Iterator[httpx.Client]:
    """`models`: the model is there before a cluster waits for it."""
    worker = '[[workers]]\nid = "smol-1"\nmodel = "embedded"\nmax_num_seqs = 4\n'
    with (
        running(config_text(worker), "smol-1", patience_s=PATIENCE_S) as cluster,
        httpx.Client(base_url=cluster.url(), timeout=PATIENCE_S) as client,
    ):
        yield client


def _drawn(path: str, **settings: Any) -> dict[str, Any]:
    if path == spoken.OLLAMA:
        return {"options": {"num_predict": ROOM, **settings}}
    return settings


@pytest.mark.parametrize("path", spoken.ALL)
def test_check_04_streamed_and_whole_are_the_same_answer(http: httpx.Client, path: str):
    settings: list[dict[str, Any]] = [{"temperature": 0}]
    if path in (spoken.CHAT, spoken.COMPLETIONS, spoken.OLLAMA):
        settings.append({"temperature": 0.9, "seed": 11})
    for drawn in settings:
        fields = {"model": MODEL, "max_tokens": ROOM, **_drawn(path, **drawn)}
        whole = spoken.ask(http, path, QUESTION, **fields)
        assert whole == spoken.ask(http, path, QUESTION, stream=True, **fields)
        assert whole.text
        assert whole.completion_tokens == ROOM or whole.finish == "stop"


def _turn(nonce: str, *later: dict[str, Any]) -> dict[str, Any]:
    """What an agent sends: its instructions again with each turn, and a line that is never the same."""
    rules = "\n".join(f"Rule {n}: answer briefly, and do not make anything up." for n in range(24))
    billing = f"x-anthropic-billing-header: cc_version=9.9.9.{nonce}; cc_entrypoint=cli; cch={nonce};"
    return {
        "model": MODEL,
        "max_tokens": 6,
        "temperature": 0,
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Which city is the capital of France?"}]},
            {"role": "system", "content": "The date is 2030-01-01."},
            *later,
        ],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


def test_check_23_the_second_turn_of_an_agent_finds_its_prefix(http: httpx.Client):
    first = http.post("/v1/messages?beta=true", json=_turn("36ee5")).json()
    later = [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "And of Spain?"},
    ]
    second = http.post("/v1/messages?beta=true", json=_turn("0aaa9", *later)).json()
    begun = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert begun > 400
    assert second["usage"]["cache_read_input_tokens"] >= 0.9 * begun
    whole = second["usage"]["input_tokens"] + second["usage"]["cache_read_input_tokens"]
    counted = http.post("/v1/messages/count_tokens?beta=true", json=_turn("ffff1", *later)).json()
    assert counted == {"input_tokens": whole}, "FC-82: cold or warm, the count is that of the prompt"


def test_fc_12_a_token_that_the_model_has_not_is_refused_and_a_stream_beside_it_goes_on(http: httpx.Client):
    turns = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"model": MODEL, "messages": turns, "temperature": 0}
    expected = spoken.ask(http, spoken.CHAT, "", **asked, max_tokens=ROOM).text
    with http.stream("POST", spoken.CHAT, json={**asked, "max_tokens": ROOM, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        for token in ("49152", "99999999"):  # the first behind the vocabulary
            refused = http.post(spoken.CHAT, json={**asked, "logit_bias": {token: 5}})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")
        text = "\n".join(lines)
    chunks = [event for event in spoken.events(spoken.CHAT, text) if event["choices"]]
    told = [event["choices"][0]["delta"].get("content", "") for event in chunks]
    assert expected == "".join(told)


TEXTS = ("", " leading", "line\n\nline ", "é漢👩\u200d👧 \ufffd", "<|im_end|> and </s>", "a" * 200)


@pytest.mark.parametrize("text", TEXTS)
def test_check_25_tokens_go_there_and_back(http: httpx.Client, text: str):
    found = http.post("/tokenize", json={"model": MODEL, "prompt": text, "add_special_tokens": False}).json()
    assert found["count"] == len(found["tokens"])
    if text:
        back = http.post("/detokenize", json={"model": MODEL, "tokens": found["tokens"]}).json()
        assert back["prompt"] == text
        asked = {"model": MODEL, "prompt": found["tokens"], "max_tokens": 1}
        assert http.post(spoken.COMPLETIONS, json=asked).json()["usage"]["prompt_tokens"] == found["count"]


@pytest.mark.parametrize("text", [text for text in TEXTS if text])
def test_check_25_fc_82_counts_are_those_of_the_prompt(http: httpx.Client, text: str):
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    usage = http.post(spoken.CHAT, json={**asked, "max_tokens": 1}).json()["usage"]
    counted = http.post("/v1/messages/count_tokens", json=asked).json()
    assert counted["input_tokens"] == usage["prompt_tokens"]
    tokenized = http.post("/tokenize", json=asked).json()
    assert tokenized["count"] == usage["prompt_tokens"]
