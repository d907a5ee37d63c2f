"""Checks 14, 17 and 18: what is taken, and what is refused in which words."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.conformance import spoken
from tests.integration.cluster import Cluster, script

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.integration

every_dialect = pytest.mark.parametrize("path", spoken.ALL)
JSON = {"content-type": "application/json"}

OPTIONAL: dict[str, tuple[str, ...]] = {
    spoken.CHAT: (
        *("frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_tokens"),
        *("max_completion_tokens", "metadata", "min_p", "modalities", "n", "parallel_tool_calls"),
        *("prediction", "presence_penalty", "prompt_cache_key", "reasoning_effort", "response_format"),
        *("safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options"),
        *("temperature", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "user", "verbosity"),
        *("web_search_options", "audio", "ignore_eos", "min_tokens", "stop_token_ids", "guided_json"),
        *("structured_outputs", "chat_template_kwargs", "repetition_penalty", "thinking", "enable_thinking"),
    ),
    spoken.COMPLETIONS: (
        *("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "seed"),
        *("presence_penalty", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user"),
        *("top_k", "min_p", "repetition_penalty", "min_tokens", "response_format", "guided_json"),
    ),
    spoken.RESPONSES: (
        *("background", "conversation", "include", "instructions", "max_output_tokens", "max_tool_calls"),
        *("metadata", "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key"),
        *("reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options"),
        *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
    ),
    spoken.MESSAGES: (
        *("container", "context_management", "mcp_servers", "metadata", "output_config", "service_tier"),
        *("stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k"),
        *("top_p", "betas", "speed", "inference_geo"),
    ),
    spoken.OLLAMA: ("format", "keep_alive", "options", "stream", "think", "tools", "logprobs"),
}


@every_dialect
def test_check_14_nulls_unknown_fields_and_floats_for_integers_are_taken(http: httpx.Client, path: str):
    asked = spoken.body(path, script(tokens=["a"]))
    nulls = dict.fromkeys(OPTIONAL[path])
    if path == spoken.OLLAMA:
        nulls["stream"] = False  # null is absent, and absent means streamed
    new = {"a_field_of_next_year": {"deep": [1]}, "x" * 1000: None, "": 0}
    floats: dict[str, Any] = {"seed": 3.0, "top_k": 5.0, "n": 1.0, "min_tokens": 0.0}
    floats |= {name: 20.0 for name in ("max_tokens", "max_output_tokens") if name in asked}
    if path == spoken.OLLAMA:
        floats = {"options": {"num_predict": 20.0, "seed": 3.0, "top_k": 5.0, "temperature": None}}
    for fields in (nulls, new, floats):
        answer = http.post(path, json={**fields, **asked, **(floats if fields is floats else {})})
        assert answer.status_code == 200, answer.text
        assert spoken.whole(path, answer.json()).text == "a"
    again = http.post(path, json={**asked, **nulls, "max_tokens": 20})
    assert again.status_code == 200, again.text


WRONG: tuple[Any, ...] = ("x", "", 7, -1, 2.5, True, [], ["x"], [7], [[]], [None], {}, {"type": 7}, {"x": []})
MAIN = ("model", "messages", "prompt", "input", "stream")


@every_dialect
def test_check_14_a_wrong_type_is_a_400_that_names_the_field(http: httpx.Client, path: str):
    asked = spoken.body(path, script(tokens=["a"]))
    for name in (*OPTIONAL[path], *(name for name in MAIN if name in asked)):
        for value in WRONG:
            answer = http.post(path, json={**asked, name: value})
            assert answer.status_code in (200, 400, 404), (name, value, answer.text)
            error = answer.json().get("error") if answer.status_code != 200 else None
            if answer.status_code == 404:
                assert name == "model"
            elif isinstance(error, dict) and path != spoken.MESSAGES:
                assert error["param"].startswith(name), (name, value, error)
            elif error is not None:
                words = error if isinstance(error, str) else error["message"]
                assert name in words, (name, value, words)


@every_dialect
@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b'[{"model": "fake-model"}]', b'"x"', b"7", b"null", b"true", b"{", b"{}}", b"\x00"),
        *(b'{"model": "\xff"}', b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b'{"a": 1e999}'),
        *(b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        b'{"messages": '
        + b"[" * 10_000
        + b"]" * 10_000
        + b', "input": '
        + b"[" * 10_000
        + b"]" * 10_000
        + b"}",
        b'{"model": "fake-model", "model": "\xed\xa0\xbd"}',
        b'{"model": "fake-model", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    ],
)
def test_check_14_a_body_that_is_no_object_is_a_400(http: httpx.Client, path: str, raw: bytes):
    answer = http.post(path, content=raw, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]


@every_dialect
def test_check_14_lone_surrogates_and_odd_characters_do_no_harm(http: httpx.Client, path: str):
    for text in ("\\ud83d", "\\udc00\\ud83d", "\\u0000", "\\ufeff", "\\uffff", "\\ud83d\\udc69"):
        raw = json.dumps(spoken.body(path, "TEXT")).replace("TEXT", text)
        answer = http.post(path, content=raw.encode(), headers=JSON)
        assert answer.status_code in (200, 400), (text, answer.text)
    assert spoken.ask(http, path, script(tokens=["a"])).text == "a"


@pytest.mark.parametrize("path", spoken.WITH_TOOLS)
def test_check_14_a_schema_with_bounds_beyond_64_bits_is_taken(
    http: httpx.Client, cluster: Cluster, path: str
):
    asked = spoken.body(path, script(tokens=["a"]), tools=("f",))
    raw = json.dumps(asked).replace('"properties": {}', '"maximum": 18446744073709551616')
    answer = http.post(path, content=raw.encode(), headers=JSON)
    assert answer.status_code == 200, answer.text
    cluster.wait_idle()


@every_dialect
def test_check_14_33_megabytes_are_refused_before_they_are_read(http: httpx.Client, path: str):
    answer = http.post(path, content=b" " * (33 << 20), headers=JSON)
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"


ODD_NAMES = ("org/other:latest", "modèle-漢/é:1%2F2")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_check_17_names_with_slashes_colons_and_letters_of_any_kind(
    client: openai.OpenAI, claude: Any, http: httpx.Client, name: str
):
    assert client.models.retrieve(name).id == claude.models.retrieve(name).id == name
    assert name in [model.id for model in client.models.list()]
    said = client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": script(tokens=["a"])}]
    )
    assert (said.choices[0].message.content, said.model) == ("a", name)
    for path in spoken.ALL:
        assert spoken.ask(http, path, script(tokens=["a"]), model=name).text == "a"
    raw = http.get("/v1/models/org/other:latest")
    assert raw.json()["id"] == http.get("/v1/models/org%2Fother%3Alatest").json()["id"] == "org/other:latest"


@pytest.mark.parametrize("name", ["nope", "org/nope:1", "a%2Fb", "é", "../x", "FAKE-MODEL"])
def test_check_17_an_unknown_name_is_a_404_in_both_dialects(client: openai.OpenAI, claude: Any, name: str):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model=name, messages=[{"role": "user", "content": "x"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as gone:
        client.models.retrieve(name)
    assert gone.value.code == "model_not_found"
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model=name, max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert missing.value.body["error"]["type"] == "not_found_error"


CONTEXT = 4096


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
def test_check_18_a_prompt_that_is_too_long_is_refused_with_the_numbers(
    http: httpx.Client, path: str, stream: bool
):
    answer = http.post(path, json=spoken.body(path, "word " * 5000, stream=stream))
    assert answer.status_code == 400
    error = answer.json()["error"]
    words = error if isinstance(error, str) else error["message"]
    assert f"maximum context length is {CONTEXT} tokens" in words
    assert "prompt is too long: 50" in words, "Anthropic's own wording, with the count"
    if path == spoken.MESSAGES:
        assert error["type"] == "invalid_request_error"
    elif path != spoken.OLLAMA:
        param = {spoken.CHAT: "messages", spoken.COMPLETIONS: "prompt", spoken.RESPONSES: "input"}[path]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@every_dialect
@pytest.mark.parametrize("stream", [False, True])
def test_check_18_an_answer_has_the_room_that_is_left(http: httpx.Client, path: str, stream: bool):
    text = script(tokens=["a"], repeat=10_000)
    said = spoken.ask(http, path, text, max_tokens=10_000, stream=stream)
    assert said.finish == "length"
    assert said.prompt_tokens + said.completion_tokens == CONTEXT
    assert said.text == "a" * said.completion_tokens
