"""From an engine's items to what the gateway is told of one request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from protocol.messages import Delta, Finished, Generate, Started, TokenLogprob
from protocol.values import Load, Timings, Usage
from worker.deltas import deltas
from worker.engine.base import GenerationOutput
from worker.engine.output import PromptError
from worker.items import sendable
from worker.parsers.base import Channel, Part, Syntax
from worker.parsers.channels import Channels
from worker.parsers.constrained import constrained
from worker.parsers.visible import VisibleText
from worker.request import chat_tools, is_forced, is_shaped

_MOST_PROMPT_LOGPROBS = 250_000
"""Of all tokens of a prompt and their alternatives: they travel in one message."""


class Answer:
    """What was said of a request so far: its parts, up to its stop strings, counts, times."""

    def __init__(self, request: Generate, now: float, syntax: Syntax | None = None) -> None:
        """`syntax` is the model's; a plain prompt is completed without any."""
        self._request = request
        if syntax is None or request.prompt is not None:
            syntax = Syntax()
        self._tools = chat_tools(request)
        self._syntax = syntax if self._tools else syntax.without_tools()
        if is_shaped(request):
            self._syntax = constrained(syntax, calls=bool(self._tools), text=not is_forced(request))
        self._channels = Channels(self._syntax, self._tools)
        self._visible = VisibleText(request.sampling.stop, calls=self._syntax.has_tools)
        self._calls = 0
        self._cut = False
        """The last call is not whole."""
        self._resumed = bool(request.resume_token_ids)
        self._text_length = 0
        self._usage = Usage()
        self._reasoning_tokens = 0
        self._accepted_at = now
        self._started_at: float | None = None
        self._first_at: float | None = None
        self.finished: Finished | None = None
        """Set when the answer is complete; its load is still to be filled in."""

    @property
    def started(self) -> bool:
        return self._started_at is not None

    @property
    def usage(self) -> Usage:
        return self._usage

    def phases(self, now: float) -> list[tuple[str, float, float]]:
        """Its name, beginning and end, of each phase that began; the last one ends now."""
        names = ("queue", "prefill", "decode")
        times = [at for at in (self._accepted_at, self._started_at, self._first_at) if at is not None]
        return list(zip(names, times, [*times[1:], now], strict=False))

    def start(self, output: GenerationOutput, now: float) -> Started:
        """The first item came: the engine took the request."""
        self._started_at = now
        if getattr(output, "in_reasoning", False):
            self._channels = Channels(self._syntax, self._tools, in_reasoning=True)
        started = Started(
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            prompt_tokens=output.prompt_tokens,
            cached_tokens=getattr(output, "cached_tokens", 0),
        )
        return self._with_prompt(started, output) if self._request.echo else started

    def _with_prompt(self, started: Started, output: GenerationOutput) -> Started:
        """Raises `PromptError` where that is too much to tell."""
        logprobs = tuple(getattr(output, "prompt_logprobs", ()))
        if len(logprobs) * (1 + (self._request.sampling.logprobs or 0)) > _MOST_PROMPT_LOGPROBS:
            words = f"the prompt has {len(logprobs)} tokens, too many for so many log-probabilities of each"
            raise PromptError(words, "settings", param="logprobs")
        return replace(started, prompt_text=getattr(output, "echoed", ""), prompt_logprobs=logprobs)

    def feed(self, output: GenerationOutput, now: float) -> list[Delta]:
        """What this item adds; none when there is nothing to tell."""
        added = sendable(self._added(output))
        tokens = len(output.tokens) or int(bool(added))
        if tokens and self._first_at is None:
            self._first_at = now
        if tokens and not output.finished and (channel := self._passing(added)) is not None:
            return [self._passed(added, channel, output, tokens)]
        parts = self._parts(added, tokens)
        if output.finished and not self._is_over:
            parts += self._shown(self._channels.flush())
        if output.finished or self._is_over:
            parts += self._text(self._visible.flush())
        self._count(output, tokens)
        if output.finished or self._is_over:
            self.finished = self._end(output, now)
        completion = self._usage.completion_tokens
        return deltas(self._request, parts, output.tokens, completion, self._logprobs(output))

    def _passing(self, added: str) -> Channel | None:
        """Whose the text is, where it is a plain piece, as most are: they take the short way."""
        channel = self._channels.passing(added)
        return None if channel is Channel.TEXT and not self._visible.passes(added) else channel

    def _passed(self, added: str, channel: Channel, output: GenerationOutput, tokens: int) -> Delta:
        thought = channel is Channel.REASONING
        self._reasoning_tokens += tokens if thought else 0
        self._count(output, tokens)
        return Delta(
            self._request.request_id,
            self._request.attempt,
            "" if thought else added,
            tuple(output.tokens),
            self._usage.completion_tokens,
            added if thought else "",
            (),
            self._logprobs(output),
        )

    def _logprobs(self, output: GenerationOutput) -> tuple[TokenLogprob, ...]:
        if self._request.sampling.logprobs is None:
            return ()
        return tuple(getattr(output, "logprobs", ()))

    @property
    def _is_over(self) -> bool:
        """Before the engine says so: a stop string, or the only call that is wanted."""
        return self._visible.matched is not None or (
            self._calls > 0 and not self._cut and not self._request.parallel_tool_calls
        )

    def _parts(self, added: str, tokens: int) -> list[Part]:
        """What a text adds to the answer. Of several tokens, those of reasoning are estimated."""
        before = self._channels.in_reasoning
        found = self._channels.feed(added)
        after = self._channels.in_reasoning
        inside = sum(len(part.text) for part in found if part.channel is Channel.REASONING)
        if before and after:
            self._reasoning_tokens += tokens
        elif before or after or inside:
            self._reasoning_tokens += max(1, tokens * inside // len(added))
        return list(self._shown(found))

    def _shown(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts up to the end of the answer, text as the client sees it."""
        for part in parts:
            if self._is_over:
                return
            if part.channel is Channel.REASONING:
                yield part
            elif part.channel is Channel.TEXT:
                yield from self._text(self._visible.feed(part.text))
            else:
                yield from self._text(self._visible.call())
                self._calls += 1
                self._cut = not part.whole
                yield part._replace(number=self._calls - 1)

    def _text(self, text: str) -> Iterator[Part]:
        if text:
            yield Part(Channel.TEXT, text)

    def _added(self, output: GenerationOutput) -> str:
        """The new text without the prompt that was given back with it."""
        return self._new_text(output).removeprefix(getattr(output, "echoed", ""))

    def _new_text(self, output: GenerationOutput) -> str:
        """That of an item, also of an engine that fills in the text so far only."""
        if self._resumed and (output.new_text or output.tokens):
            # What was emitted elsewhere goes through parsers and stop strings once more, unseen.
            self._resumed = False
            before = output.text[: len(output.text) - len(output.new_text)]
            self._parts(before, len(self._request.resume_token_ids))
        elif not output.new_text and not self._resumed:
            added = output.text[self._text_length :]
            self._text_length = max(self._text_length, len(output.text))
            return added
        self._text_length = len(output.text)
        return output.new_text

    def _count(self, output: GenerationOutput, tokens: int) -> None:
        completion = output.completion_tokens or self._usage.completion_tokens + tokens
        self._usage = Usage(
            prompt_tokens=output.prompt_tokens or self._usage.prompt_tokens,
            cached_tokens=getattr(output, "cached_tokens", 0) or self._usage.cached_tokens,
            completion_tokens=completion,
            reasoning_tokens=min(self._reasoning_tokens, completion),
            mtp_drafts=output.mtp_drafts,
            mtp_accepted=output.mtp_accepted,
        )

    def _end(self, output: GenerationOutput, now: float) -> Finished:
        matched: str | int | None = self._visible.matched
        # A word of the engine's own ("eos") says no more to a client.
        reason = output.finish_reason
        if self._is_over or reason not in ("stop", "length"):
            reason = "stop"
        if self._calls and not self._cut and reason == "stop":
            reason = "tool_calls"
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
