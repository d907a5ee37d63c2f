"""HTTP manners that clients rely on, dialect by dialect."""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from typing import Any

import httpx
import pytest

from gateway import encodings
from tests.conformance import spoken
from tests.gateway.dialects.rules import LEAST, PARSERS
from tests.integration.cluster import script

pytestmark = pytest.mark.integration

MODEL = "fake-model"
GENERATION = ("/chat/completions", "/completions", "/responses", "/messages")
PACKERS: list[tuple[str, Any]] = [("gzip", gzip.compress), ("deflate", zlib.compress)]
if encodings.zstd is not None:
    PACKERS.append(("zstd", encodings.zstd.compress))


def body_for(path: str, text: str = "hi", **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}]
    asked: dict[str, dict[str, Any]] = {
        "/chat/completions": {"messages": turns},
        "/completions": {"prompt": text},
        "/responses": {"input": text},
        "/messages": {"messages": turns, "max_tokens": 10},
    }
    return {"model": MODEL, **asked[path], **fields}


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize("spelling", ["/v1{}", "{}", "/v1{}/", "//v1/{}", "/v1{}?beta=true"])
def test_every_spelling_of_a_path_is_answered_without_a_redirect(
    http: httpx.Client, path: str, spelling: str
):
    answer = http.post(spelling.format(path), json=body_for(path, script(tokens=["a"])))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/ping", "/version"])
def test_head_is_answered_without_a_body(http: httpx.Client, path: str):
    answer = http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", [*GENERATION, "/v1/models", "/nowhere"])
def test_options_is_answered_for_browsers(http: httpx.Client, path: str):
    answer = http.options(path, headers={"origin": "http://localhost:3000"})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "authorization" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("path", GENERATION)
def test_errors_have_the_shape_of_their_dialect(http: httpx.Client, path: str):
    wrong = [
        (405, http.get(path)),
        (415, http.post(path, content="a=b", headers={"content-type": "application/x-www-form-urlencoded"})),
        (400, http.post(path, content="[]", headers={"content-type": "application/json"})),
        (400, http.post(path, content=b"\xff", headers={"content-type": "application/json"})),
        (404, http.post(path, json=body_for(path, model="nope"))),
        (413, http.post(path, content=b"x" * (33 << 20))),
    ]
    for status, answer in wrong:
        assert answer.status_code == status
        found = answer.json()
        if path == "/messages":
            assert (found["type"], set(found["error"])) == ("error", {"type", "message"})
            assert found["request_id"] == answer.headers["request-id"]
        else:
            assert set(found) == {"error"}
            assert set(found["error"]) == {"message", "type", "param", "code"}
    assert wrong[0][1].headers["allow"] == "POST"


def test_an_unknown_path_is_said_in_json(http: httpx.Client):
    answer = http.get("/v1/nowhere")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
def test_compressed_bodies_are_taken(http: httpx.Client, path: str, encoding: str, pack: Any):
    packed = pack(json.dumps(body_for(path, script(tokens=["a"]))).encode())
    headers = {"content-type": "application/json", "content-encoding": encoding}
    assert http.post(path, content=packed, headers=headers).status_code == 200


@pytest.mark.parametrize(("encoding", "pack"), PACKERS)
def test_a_body_that_is_small_only_while_packed_is_refused(http: httpx.Client, encoding: str, pack: Any):
    packed = pack(b" " * (40 << 20))
    answer = http.post("/v1/messages", content=packed, headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", [*GENERATION, "/tokenize", "/api/chat"])
@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "x"])
def test_an_encoding_that_is_not_taken_is_named_with_those_that_are(
    http: httpx.Client, path: str, encoding: str
):
    answer = http.post(path, content=b"{}", headers={"content-encoding": encoding})
    assert answer.status_code == 415
    told = answer.json()["error"]
    message = told if isinstance(told, str) else told["message"]
    assert repr(encoding) in message
    assert "gzip" in message


@pytest.mark.parametrize("path", [*PARSERS, "/api/show", "/api/v0/chat/completions", "/api/v0/completions"])
def test_fc_44_an_unknown_model_is_refused_at_once_with_the_names_that_are_served(
    http: httpx.Client, path: str
):
    like = path.replace("/api/v0/", "/v1/")
    names = ("nope", "org/any-model", "../../etc", "/etc", "x" * 10_000, MODEL + " ", "M:latest", "\u0000")
    took_s = []
    for name in (*names, *([""] if path.startswith("/v1") else [])):
        answer = http.post(path, json={**LEAST.get(like, {}), "model": name})
        assert answer.status_code == 404, (name, answer.text[:200])
        took_s.append(answer.elapsed.total_seconds())
        error = answer.json()["error"]
        assert MODEL in (error if isinstance(error, str) else error["message"])
        if isinstance(error, dict) and "messages" not in path:
            assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert statistics.median(took_s) < 0.5, "nobody looks anywhere for it"
    for wrong in (7, None):  # here several are served
        assert http.post(path, json={**LEAST.get(like, {}), "model": wrong}).status_code == 400


BIASES: tuple[Any, ...] = (
    {"AI": -100},
    {"-1": 5},
    {"99999999999": 1},
    {"5": "x"},
    {"5": 101},
    {"5": []},
    [],
    "5",
    5,
)


@pytest.mark.parametrize("path", spoken.ALL)
def test_fc_12_a_bias_of_what_is_no_token_never_reaches_an_engine(http: httpx.Client, path: str):
    text = script(tokens=["a"])
    huge = {str(number): 1 for number in range(300_000)}
    for bias in (*BIASES, huge):
        fields = {"options": {"logit_bias": bias}} if path == spoken.OLLAMA else {"logit_bias": bias}
        answer = http.post(path, json=spoken.body(path, text) | fields)
        assert answer.status_code == 400, (str(bias)[:80], answer.text[:200])
    raw = json.dumps(spoken.body(path, text) | fields).replace(json.dumps(huge), '{"5": 1e400}')
    assert http.post(path, content=raw).status_code == 400
    assert http.post(path, json=spoken.body(path, text, logit_bias={"5": 1})).status_code == 200


@pytest.mark.parametrize("path", GENERATION)
@pytest.mark.parametrize("stream", [False, True])
def test_fc_77_a_refusal_before_the_first_token_is_a_status(http: httpx.Client, path: str, stream: bool):
    answer = http.post(path, json=body_for(path, "word " * 5000, stream=stream))
    assert answer.status_code == 400
    assert "prompt is too long: " in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", GENERATION)
def test_fc_77_a_failure_later_ends_the_stream_without_a_finish(http: httpx.Client, path: str):
    text = script(tokens=["a"], repeat=9, delay_ms=20, raise_at=3)
    stream = http.post(path, json=body_for(path, text, stream=True)).text
    assert "[DONE]" not in stream
    assert "message_stop" not in stream
    assert "response.completed" not in stream
    assert '"finish_reason":"stop"' not in stream
    assert '"error"' in stream.split("\n\n")[-2]
