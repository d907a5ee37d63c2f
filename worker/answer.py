"""From an engine's items to what the gateway is told of one request. Pure."""

from __future__ import annotations

from protocol.messages import Delta, Finished, Generate, Started
from protocol.values import Load, Timings, Usage
from worker.engine.base import GenerationOutput
from worker.items import sendable
from worker.stops import StopMatcher

_REASONS = ("stop", "length", "tool_calls")


class Answer:
    """What was said of a request so far: text up to its stop strings, counts, times."""

    def __init__(self, request: Generate, now: float) -> None:
        self._request = request
        self._matcher = StopMatcher(request.sampling.stop)
        self._resumed = bool(request.resume_token_ids)
        self._text_length = 0
        self._usage = Usage()
        self._accepted_at = now
        self._started_at: float | None = None
        self._first_at: float | None = None
        self.finished: Finished | None = None
        """Set when the answer is complete; its load is still to be filled in."""

    @property
    def started(self) -> bool:
        return self._started_at is not None

    def start(self, output: GenerationOutput, now: float) -> Started:
        """The first item came: the engine took the request."""
        self._started_at = now
        return Started(
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            prompt_tokens=output.prompt_tokens,
            cached_tokens=getattr(output, "cached_tokens", 0),
        )

    def feed(self, output: GenerationOutput, now: float) -> Delta | None:
        """What this item adds. None when there is nothing to tell."""
        added = sendable(self._added(output))
        text = self._matcher.feed(added)
        if output.finished and self._matcher.matched is None:
            text += self._matcher.flush()
        self._count(output, bool(added))
        if self._first_at is None and (output.tokens or added):
            self._first_at = now
        if output.finished or self._matcher.matched is not None:
            self.finished = self._end(output, now)
        if not text and not output.tokens:
            return None
        return Delta(
            self._request.request_id,
            self._request.attempt,
            text,
            tuple(output.tokens),
            self._usage.completion_tokens,
        )

    def _added(self, output: GenerationOutput) -> str:
        """The new text, also of an engine that fills in the text so far only."""
        if self._resumed and (output.new_text or output.tokens):
            # What was emitted elsewhere goes through the stop strings once more, unseen.
            self._resumed = False
            self._matcher.feed(output.text[: len(output.text) - len(output.new_text)])
        elif not output.new_text and not self._resumed:
            added = output.text[self._text_length :]
            self._text_length = max(self._text_length, len(output.text))
            return added
        self._text_length = len(output.text)
        return output.new_text

    def _count(self, output: GenerationOutput, some_text: bool) -> None:
        counted = self._usage.completion_tokens + (len(output.tokens) or int(some_text))
        self._usage = Usage(
            prompt_tokens=output.prompt_tokens or self._usage.prompt_tokens,
            cached_tokens=getattr(output, "cached_tokens", 0) or self._usage.cached_tokens,
            completion_tokens=output.completion_tokens or counted,
            mtp_drafts=output.mtp_drafts,
            mtp_accepted=output.mtp_accepted,
        )

    def _end(self, output: GenerationOutput, now: float) -> Finished:
        matched: str | int | None = self._matcher.matched
        # A word of the engine's own ("eos") says no more to a client.
        reason = output.finish_reason
        if matched is not None or reason not in _REASONS:
            reason = "stop"
        if matched is None:
            matched = getattr(output, "matched_stop", None)
        return Finished(
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            finish_reason=reason,
            usage=self._usage,
            load=Load(),
            matched_stop=matched,
            timings=self._timings(now),
        )

    def _timings(self, now: float) -> Timings:
        started = now if self._started_at is None else self._started_at
        first = now if self._first_at is None else self._first_at
        return Timings(queued_s=started - self._accepted_at, prefill_s=first - started, decode_s=now - first)
