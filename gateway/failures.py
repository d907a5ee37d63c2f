"""The one table from what went wrong to what the client reads, in the shape of each dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from protocol.api_keys import hide_keys
from protocol.errors import ClusterError, ErrorCode

Headers = list[tuple[bytes, bytes]]

DEFAULT_RETRY_AFTER_S = 1.0
"""Said with 429 and 503 where nothing better is known."""


_MOST_RETRY_AFTER_S = 60.0
"""Clients follow no longer one: some try at once instead, some never again."""


@dataclass(frozen=True)
class Failure:
    """How one kind of error is answered."""

    status: int
    type: str
    code: str
    """The code that clients match on, unless the error brings a finer one."""
    retry_after: bool = False
    """Another try may succeed: the answer says when."""
    never_retry: bool = False
    """Clients would repeat this status by themselves, in vain: the answer forbids it."""
    anthropic: int | None = None
    """The status in Anthropic's dialect, where it is another one."""
    responses: int | None = None
    """The same for OpenAI's responses: their best known client never repeats a 429, and every 5xx."""


class Shape(Enum):
    """Whose clients read the error."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"


_CLIENT = "invalid_request_error"
_SERVER = "server_error"

TABLE: Mapping[ErrorCode, Failure] = {
    ErrorCode.INVALID_REQUEST: Failure(400, _CLIENT, "invalid_value"),
    ErrorCode.UNSUPPORTED: Failure(400, _CLIENT, "unsupported_parameter"),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: Failure(400, _CLIENT, "context_length_exceeded"),
    ErrorCode.UNAUTHENTICATED: Failure(401, "authentication_error", "invalid_api_key"),
    ErrorCode.FORBIDDEN: Failure(403, "permission_error", "forbidden"),
    ErrorCode.MODEL_NOT_FOUND: Failure(404, _CLIENT, "model_not_found"),
    ErrorCode.UNKNOWN_URL: Failure(404, _CLIENT, "unknown_url"),
    ErrorCode.METHOD_NOT_ALLOWED: Failure(405, _CLIENT, "method_not_allowed"),
    ErrorCode.REQUEST_TIMEOUT: Failure(408, "timeout_error", "request_timeout"),
    ErrorCode.REQUEST_TOO_LARGE: Failure(413, _CLIENT, "request_too_large"),
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: Failure(415, _CLIENT, "unsupported_media_type"),
    ErrorCode.RATE_LIMITED: Failure(429, "rate_limit_error", "rate_limit_exceeded", retry_after=True),
    ErrorCode.OVERLOADED: Failure(
        429, "rate_limit_error", "rate_limit_exceeded", retry_after=True, anthropic=529, responses=503
    ),
    ErrorCode.QUEUE_TIMEOUT: Failure(503, _SERVER, "queue_timeout", retry_after=True, anthropic=529),
    ErrorCode.NO_WORKER_AVAILABLE: Failure(
        503, _SERVER, "no_worker_available", retry_after=True, anthropic=529
    ),
    ErrorCode.MODEL_LOADING: Failure(503, _SERVER, "model_loading", retry_after=True),
    ErrorCode.SHUTTING_DOWN: Failure(503, _SERVER, "shutting_down", retry_after=True, anthropic=529),
    ErrorCode.WORKER_LOST: Failure(502, _SERVER, "worker_lost", anthropic=500),
    ErrorCode.POISON_REQUEST: Failure(
        502, _SERVER, "poison_request", never_retry=True, anthropic=500, responses=400
    ),
    ErrorCode.DEADLINE_EXCEEDED: Failure(504, "timeout_error", "deadline_exceeded", never_retry=True),
    ErrorCode.ENGINE_FAILED: Failure(500, _SERVER, "internal_error"),
    ErrorCode.INTERNAL_ERROR: Failure(500, _SERVER, "internal_error"),
    ErrorCode.CLIENT_CLOSED_REQUEST: Failure(499, _CLIENT, "client_closed_request"),
}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Headers
    body: bytes


def shape_of(path: str) -> Shape:
    """Which clients ask at a path (as `middleware.plain_path` leaves it)."""
    if path.startswith("/api/v0/"):  # LM Studio's, which speak OpenAI's dialect
        return Shape.OPENAI
    first = path.split("/", 2)[1] if path.startswith("/") else path
    return _SHAPES.get(first, Shape.OPENAI)


_SHAPES = {"messages": Shape.ANTHROPIC, "responses": Shape.RESPONSES, "api": Shape.OLLAMA}


def status_of(error: ClusterError, shape: Shape) -> int:
    failure = TABLE[error.code]
    if shape is Shape.ANTHROPIC:
        return failure.anthropic or failure.status
    if shape is Shape.RESPONSES:
        return failure.responses or failure.status
    return failure.status


def error_fields(error: ClusterError) -> dict[str, object]:
    """The four keys that OpenAI's clients read."""
    failure = TABLE[error.code]
    return {
        "message": hide_keys(error.message),
        "type": failure.type,
        "param": error.param,
        "code": error.reason or failure.code,
    }


def error_object(error: ClusterError, shape: Shape = Shape.OPENAI, request_id: str = "") -> dict[str, object]:
    """The body of an error."""
    if shape is Shape.OLLAMA:
        return {"error": hide_keys(error.message)}
    if shape is not Shape.ANTHROPIC:
        fields = error_fields(error)
        if shape is Shape.RESPONSES and error.param == "messages":
            fields["param"] = "input"  # a worker does not know in which dialect it was asked
        return {"error": fields}
    kind = _ANTHROPIC_TYPES.get(status_of(error, shape), "invalid_request_error")
    body: dict[str, object] = {"type": "error", "error": {"type": kind, "message": hide_keys(error.message)}}
    return body | {"request_id": request_id} if request_id else body


def render(error: ClusterError, shape: Shape = Shape.OPENAI, request_id: str = "") -> Answer:
    """The whole answer to a request that failed before its status was sent."""
    failure = TABLE[error.code]
    body = msgspec.json.encode(error_object(error, shape, request_id))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if failure.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if failure.retry_after:
        wait_s = DEFAULT_RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        wait_s = min(_MOST_RETRY_AFTER_S, max(0.001, wait_s))
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait_s))))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(wait_s * 1000)))
    if failure.never_retry:
        headers.append((b"x-should-retry", b"false"))
    return Answer(status_of(error, shape), headers, body)
