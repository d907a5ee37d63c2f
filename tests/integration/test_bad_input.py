"""Bad bodies are answered with 4xx in OpenAI's shape, and a stream beside them is undisturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.cluster import (
    PATIENCE_S,
    Cluster,
    chat,
    config_text,
    fake_worker,
    running,
    script,
    stream_chat,
    text_of,
)

pytestmark = pytest.mark.integration

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = config_text(fake_worker("w-1", max_model_len=512) + fake_worker("w-2", model="other"))
    with running(config, "w-1", "w-2") as found:
        yield found


def _body(**fields: Any) -> bytes:
    return json.dumps({"model": "fake-model", "messages": HI, **fields}).encode()


CASES: dict[str, tuple[bytes, int, str | None, str]] = {
    "not JSON": (b"hello", 400, None, "invalid_json"),
    "empty": (b"", 400, None, "invalid_json"),
    "cut": (b'{"model": "fake-model", "messages": [', 400, None, "invalid_json"),
    "array": (b"[1, 2]", 400, None, "invalid_json"),
    "null": (b"null", 400, None, "invalid_json"),
    "string": (b'"x"', 400, None, "invalid_json"),
    "invalid UTF-8": (b'{"model": "\xff\xfe"}', 400, None, "invalid_json"),
    "NaN": (
        b'{"model": "fake-model", "messages": [], "temperature": NaN}',
        400,
        "temperature",
        "invalid_json",
    ),
    "nested": (b'{"messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400, None, "invalid_json"),
    "huge number": (
        _body().replace(b'"hi"', b'"hi"')[:-1] + b', "temperature": 1e999}',
        400,
        "temperature",
        "invalid_json",
    ),
    "no messages": (b'{"model": "fake-model"}', 400, "messages", "missing_required_parameter"),
    "empty messages": (_body(messages=[]), 400, "messages", "invalid_value"),
    "messages a string": (_body(messages="hi"), 400, "messages", "invalid_type"),
    "message a number": (_body(messages=[7]), 400, "messages[0]", "invalid_type"),
    "unknown role": (
        _body(messages=[{"role": "alien", "content": "x"}]),
        400,
        "messages[0].role",
        "invalid_value",
    ),
    "no role": (_body(messages=[{"content": "x"}]), 400, "messages[0].role", "missing_required_parameter"),
    "content a number": (
        _body(messages=[{"role": "user", "content": 5}]),
        400,
        "messages[0].content",
        "invalid_type",
    ),
    "an image": (
        _body(
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
        ),
        400,
        "messages[0].content[0].type",
        "unsupported_value",
    ),
    "temperature too high": (_body(temperature=2.5), 400, "temperature", "invalid_value"),
    "temperature a string": (_body(temperature="0.5"), 400, "temperature", "invalid_type"),
    "temperature a bool": (_body(temperature=True), 400, "temperature", "invalid_type"),
    "top_p negative": (_body(top_p=-0.1), 400, "top_p", "invalid_value"),
    "min_p above one": (_body(min_p=1.5), 400, "min_p", "invalid_value"),
    "top_k minus two": (_body(top_k=-2), 400, "top_k", "invalid_value"),
    "max_tokens zero": (_body(max_tokens=0), 400, "max_tokens", "invalid_value"),
    "max_tokens a fraction": (_body(max_tokens=1.5), 400, "max_tokens", "invalid_type"),
    "max_tokens a string": (_body(max_tokens="10"), 400, "max_tokens", "invalid_type"),
    "seed huge": (_body(seed=2**70), 400, "seed", "invalid_value"),
    "stop a number": (_body(stop=5), 400, "stop", "invalid_type"),
    "stop with a number": (_body(stop=["a", 5]), 400, "stop[1]", "invalid_type"),
    "stream a string": (_body(stream="yes"), 400, "stream", "invalid_type"),
    "stream_options without stream": (
        _body(stream_options={"include_usage": True}),
        400,
        "stream_options",
        "invalid_value",
    ),
    "n zero": (_body(n=0), 400, "n", "invalid_value"),
    "unknown model": (_body(model="no-such-model"), 404, "model", "model_not_found"),
    "model a number": (_body(model=5), 400, "model", "invalid_type"),
    "over-long prompt": (
        _body(messages=[{"role": "user", "content": "word " * 2000}]),
        400,
        "messages",
        "context_length_exceeded",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_answered_in_openais_shape(cluster: Cluster, name: str):
    body, status, param, code = CASES[name]
    for stream in (False, True):
        sent = (
            body
            if not stream or not body.endswith(b"}") or b'"stream' in body
            else body[:-1] + b', "stream": true}'
        )
        answer = httpx.post(
            cluster.url() + "/v1/chat/completions",
            content=sent,
            headers={"content-type": "application/json"},
            timeout=PATIENCE_S,
        )
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["param"], error["code"]) == (param, code), error
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) > 10
        assert answer.headers["x-request-id"]
        assert answer.headers["x-request-id"] == answer.headers["request-id"]


def test_a_stream_beside_bad_requests_is_undisturbed(cluster: Cluster):
    async def scenario() -> None:
        async with httpx.AsyncClient(base_url=cluster.url(), timeout=PATIENCE_S) as client:
            stream = asyncio.create_task(
                stream_chat(client, chat(script(tokens=["a"], repeat=100, delay_ms=20)))
            )
            for body, status, _param, _code in CASES.values():
                answer = await client.post(
                    "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
                )
                assert answer.status_code == status
            assert text_of(await stream) == "a" * 100

    asyncio.run(scenario())
    cluster.wait_idle()
    for process_id in ("gw-1", "w-1", "w-2"):
        assert "Traceback" not in cluster.log(process_id)


def test_a_body_of_40_megabytes_is_refused(cluster: Cluster):
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 1_000_000

    for sized in (True, False):
        headers = {"content-type": "application/json"}
        if sized:
            headers["content-length"] = "40000000"
        try:
            answer = httpx.post(
                cluster.url() + "/v1/chat/completions", content=pieces(), headers=headers, timeout=PATIENCE_S
            )
        except httpx.WriteError:
            continue  # the gateway answered and closed before all was sent: a fair reading of the rule
        assert answer.status_code == 413, answer.text
        assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
    ],
)
def test_wrong_urls_and_methods(cluster: Cluster, method: str, path: str, status: int, code: str):
    answer = httpx.request(method, cluster.url() + path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


def test_a_body_that_is_not_json_by_its_content_type_is_refused(cluster: Cluster):
    answer = httpx.post(cluster.url() + "/v1/chat/completions", data={"model": "x"})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"
