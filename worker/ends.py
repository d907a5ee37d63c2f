"""How requests end without an answer, in the words of the wire. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.errors import ErrorCode
from protocol.messages import Failed, Generate, Rejected, Work
from protocol.values import Load
from worker.engine.output import PromptError


def rejected(request: Work, reason: str, retry_after_s: float) -> Rejected:
    """The load is still to be filled in, here as below."""
    return Rejected(
        request_id=request.request_id,
        attempt=request.attempt,
        load=Load(),
        reason=reason,
        retry_after_s=retry_after_s,
    )


def failed(request: Work, code: ErrorCode, message: str) -> Failed:
    return Failed(
        request_id=request.request_id, attempt=request.attempt, code=code, message=message, load=Load()
    )


def prompt_failed(request: Work, error: PromptError) -> Failed:
    """For what of the request cannot be served as it is."""
    code = ErrorCode.INVALID_REQUEST
    if error.reason in (ErrorCode.CONTEXT_LENGTH_EXCEEDED, ErrorCode.UNSUPPORTED):
        code = ErrorCode(error.reason)
    param = error.param
    if param is None and error.reason != "settings" and isinstance(request, Generate):
        param = "prompt" if request.prompt is not None else "messages"
    return replace(failed(request, code, str(error)), param=param)
