"""Every error has a row, and every row an answer in OpenAI's shape."""

from __future__ import annotations

import json

import pytest

from gateway.failures import TABLE, Shape, render, shape_of
from protocol.errors import ClusterError, ErrorCode, InvalidRequestError

STATUSES = {
    "invalid_request": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "model_not_found": 404,
    "unknown_url": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "rate_limited": 429,
    "overloaded": 429,
    "queue_timeout": 503,
    "no_worker_available": 503,
    "model_loading": 503,
    "shutting_down": 503,
    "worker_lost": 502,
    "poison_request": 502,
    "deadline_exceeded": 504,
    "engine_failed": 500,
    "internal_error": 500,
    "client_closed_request": 499,
}


def test_the_table_is_complete():
    assert {str(code): failure.status for code, failure in TABLE.items()} == STATUSES
    assert set(TABLE) == set(ErrorCode)


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_is_rendered_with_all_four_keys(code: ErrorCode):
    answer = render(ClusterError(code, "words", param="p"))
    error = json.loads(answer.body)["error"]
    assert error == {"message": "words", "type": TABLE[code].type, "param": "p", "code": TABLE[code].code}
    headers = dict(answer.headers)
    assert headers[b"content-length"] == str(len(answer.body)).encode()
    assert (b"retry-after" in headers) == (answer.status in (429, 503))
    assert (b"retry-after-ms" in headers) == (answer.status in (429, 503))
    in_vain = (ErrorCode.DEADLINE_EXCEEDED, ErrorCode.POISON_REQUEST)
    assert (headers.get(b"x-should-retry") == b"false") == (code in in_vain)


def test_a_finer_code_replaces_the_tables():
    error = InvalidRequestError("n is a string", param="n", reason="invalid_type")
    assert json.loads(render(error).body)["error"]["code"] == "invalid_type"


@pytest.mark.parametrize(("wait_s", "seconds", "milliseconds"), [(0.0, 1, 1), (0.2, 1, 200), (7.1, 8, 7100)])
def test_retry_after_is_whole_seconds_and_at_least_one(wait_s: float, seconds: int, milliseconds: int):
    headers = dict(render(ClusterError(ErrorCode.OVERLOADED, "full", retry_after_s=wait_s)).headers)
    assert int(headers[b"retry-after"]) == seconds
    assert int(headers[b"retry-after-ms"]) == milliseconds


def test_the_conversation_of_a_response_is_its_input():
    error = ClusterError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="messages")
    found = json.loads(render(error, Shape.RESPONSES).body)["error"]
    assert (found["code"], found["param"]) == ("context_length_exceeded", "input")
    assert json.loads(render(error).body)["error"]["param"] == "messages"


def test_no_client_is_told_to_wait_longer_than_it_will():
    headers = dict(render(ClusterError(ErrorCode.MODEL_LOADING, "cold", retry_after_s=900)).headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"60", b"60000")


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/chat/completions", Shape.OPENAI),
        ("/responses/x", Shape.RESPONSES),
        ("/messages/count_tokens", Shape.ANTHROPIC),
        ("/api/chat", Shape.OLLAMA),
        ("/api/v0/models", Shape.OPENAI),
        ("/nowhere", Shape.OPENAI),
    ],
)
def test_each_path_has_the_errors_of_its_clients(path: str, shape: Shape):
    assert shape_of(path) is shape
