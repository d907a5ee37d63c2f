"""What can go wrong with a request, by name. The gateway alone maps these to HTTP."""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Every way in which a request can end without an answer."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    UNKNOWN_URL = "unknown_url"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_WORKER_AVAILABLE = "no_worker_available"
    MODEL_LOADING = "model_loading"
    SHUTTING_DOWN = "shutting_down"
    WORKER_LOST = "worker_lost"
    POISON_REQUEST = "poison_request"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    ENGINE_FAILED = "engine_failed"
    INTERNAL_ERROR = "internal_error"
    CLIENT_CLOSED_REQUEST = "client_closed_request"


class ClusterError(Exception):
    """A request that cannot be answered: which kind, and in words the cause and the cure.

    `param` is the path of the field at fault (`messages[0].content`), `reason` a finer code for
    the client (`invalid_type`), `retry_after_s` a hint when another try may succeed.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        reason: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.reason = reason
        self.retry_after_s = retry_after_s


class InvalidRequestError(ClusterError):
    """The client's own mistake: a field with a wrong value. Answered with 400."""

    def __init__(self, message: str, *, param: str | None = None, reason: str = "invalid_value") -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message, param=param, reason=reason)


WORKER_DIED = "worker_died"
"""The reason of a worker's `worker_lost` when its engine ended with the request, not on purpose."""

_OF_WORKERS = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED,
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        ErrorCode.MODEL_LOADING,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.WORKER_LOST,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.ENGINE_FAILED,
    }
)


def worker_code(text: str) -> ErrorCode:
    """The code that a worker gave. One that this version does not know, or that is for the gateway
    to say (who the client is, what it may, that it left), counts as internal."""
    return ErrorCode(text) if text in _OF_WORKERS else ErrorCode.INTERNAL_ERROR
