"""The spans of a request in a worker, beneath the gateway's attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from protocol import spans
from protocol.messages import Failed, Finished, Rejected, Work
from protocol.spans import Span, Value
from worker.answer import Answer
from worker.whole import Whole

_ABORTED = "aborted"


def made(
    request: Work, answer: Answer | Whole, end: Finished | Failed | Rejected | None, now: float
) -> Iterator[Span]:
    """Of one that is over, in the event loop's time: `queue`, `prefill`, `decode`, as far as it came.

    None where its gateway wants none. `end`: what was said of it; None: nothing, as it was aborted.
    """
    attempt = spans.read(request.trace_context.get(spans.TRACEPARENT, ""))
    if attempt is None or not attempt.sampled:
        return
    phases = answer.phases(now)
    last = len(phases) - 1
    for number, (name, began, ended) in enumerate(phases):
        error = _why(end) if number == last else ""
        place = attempt.beneath()
        yield Span(name, place, attempt.span_id, began, ended, _told(name, answer, end), error)


def _why(end: Finished | Failed | Rejected | None) -> str:
    if isinstance(end, Finished):
        return ""
    if end is None:
        return _ABORTED
    return end.code if isinstance(end, Failed) else end.reason


def _told(name: str, answer: Answer | Whole, end: Finished | Failed | Rejected | None) -> dict[str, Value]:
    usage = answer.usage
    if name == "prefill":
        cached = "gen_ai.usage.cache_read.input_tokens"
        return {"gen_ai.usage.input_tokens": usage.prompt_tokens, cached: usage.cached_tokens}
    if name == "queue":
        return {}
    told: dict[str, Value] = {"gen_ai.usage.output_tokens": usage.completion_tokens}
    if isinstance(end, Finished):
        told["gen_ai.response.finish_reasons"] = (end.finish_reason,)
    return told
