"""One answer on the event loop: ids come in from the engine thread, items go out to its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from protocol.messages import TokenLogprob
from worker.engine.detokenizer import REPLACEMENT, Detokenizer
from worker.engine.output import EngineOutput
from worker.engine.sequence import Event, Likelihood
from worker.engine.spelling import Spell, spelled
from worker.stops import StopMatcher


class Answer:
    """Owns what is known of an answer and what its reader has not taken yet. Event loop only.

    Tokens that pile up while the reader is elsewhere are joined to one item.
    """

    def __init__(
        self, request_id: str, detokenizer: Detokenizer, stops: Sequence[str], spell: Spell | None = None
    ) -> None:
        """With `spell`, its items carry the tokens' log-probabilities."""
        self.request_id = request_id
        self.reserved = 0
        """Tokens of the KV cache that are promised to it."""
        self.prompt_tokens = 0
        self.in_reasoning = False
        self.ended = False
        """No more comes from the engine."""
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._spell = spell
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._mtp_drafts = 0
        self._mtp_accepted = 0
        self._text = ""
        self._new_text = ""
        self._new_tokens: list[int] = []
        self._new_logprobs: list[TokenLogprob] = []
        self._echo = ""
        self._prompt_ids: list[int] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._begun = False
        self._finish: str | None = None
        self._matched_id: int | None = None
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def held(self) -> int:
        """Tokens of the KV cache: those promised, or those that are there where these are more."""
        return max(self.reserved, self.prompt_tokens + self._completion_tokens)

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take in what an earlier attempt has emitted already, without showing it again."""
        self._completion_tokens = len(token_ids)
        self._text = self._matcher.feed(self._detokenizer.feed(token_ids))
        if self._matcher.matched is not None:
            self.finish("stop")

    def echo(self, text: str, token_ids: list[int]) -> None:
        """The prompt comes before the answer. Stop strings are not looked for in it."""
        self._echo = text
        self._prompt_ids = token_ids

    def take(self, event: Event, asked_stop_ids: frozenset[int] = frozenset()) -> None:
        """One event of the engine. A stop token counts, and is not shown."""
        if self.ended:
            return
        if event.error is not None:
            self.fail(event.error)
            return
        if event.token is None:
            self._take_word(event)
            return
        self._completion_tokens += 1
        self._mtp_drafts += event.drafts
        self._mtp_accepted += event.accepted
        self._new_tokens.append(event.token)
        if self._spell is not None and event.likelihood is not None:
            self._new_logprobs.append(spelled(event.token, event.likelihood, self._spell))
        if event.finish != "stop":
            self._new_text += self._matcher.feed(self._detokenizer.feed((event.token,)))
        elif event.token in asked_stop_ids:
            self._matched_id = event.token
        if self._matcher.matched is not None:
            self.finish("stop")
        elif event.finish is not None:
            self.finish(event.finish)
        self._wake()

    def _take_word(self, event: Event) -> None:
        """An event without a token: the prompt was taken, or nothing more than it was asked for."""
        if event.finish is not None:
            self.finish(event.finish)
            return
        self._begun = True
        self._cached_tokens = event.cached_tokens or 0
        if self._spell is not None and self._prompt_ids:
            found = (Likelihood(0.0), *event.prompt)
            each = zip(self._prompt_ids, found, strict=False)
            self._prompt_logprobs = [spelled(token, likelihood, self._spell) for token, likelihood in each]
        self._wake()

    def finish(self, reason: str) -> None:
        """The answer is complete; what was held back is shown, unless a stop string ended it."""
        if self._matcher.matched is None:
            rest = self._detokenizer.flush()
            if reason == "length":
                rest = rest.removesuffix(REPLACEMENT)  # a character that was cut in two
            self._new_text += self._matcher.feed(rest)
            self._new_text += self._matcher.flush()
        self._finish = "stop" if self._matcher.matched is not None else reason
        self.ended = self._begun = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """The reader gets this exception, after what was there before it."""
        if not self.ended:
            self._error = error
            self.ended = True
            self._wake()

    async def next_item(self) -> EngineOutput:
        """The next item; the first has no token. Raises what the answer failed with."""
        while not (self._begun or self._new_tokens or self.ended):
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._begun and self._finish is None:
            self._begun = False
            return self._item(EngineOutput("", finished=False))
        if self._error is not None and not self._new_tokens:
            raise self._error
        item = EngineOutput(
            "",
            tokens=self._new_tokens,
            new_text=self._new_text,
            finished=self._finish is not None,
            matched_stop=self._matcher.matched or self._matched_id,
            logprobs=self._new_logprobs,
        )
        self._new_tokens, self._new_text, self._new_logprobs = [], "", []
        return self._item(item)

    def _item(self, item: EngineOutput) -> EngineOutput:
        """With what all items have, and the prompt before the first, where it is given back."""
        item.echoed = self._echo
        item.new_text = self._echo + item.new_text
        self._text += item.new_text
        item.text = self._text
        item.prompt_token_ids, item.prompt_logprobs = self._prompt_ids, self._prompt_logprobs
        self._echo, self._prompt_ids, self._prompt_logprobs = "", [], []
        item.prompt_tokens = self.prompt_tokens
        item.completion_tokens = self._completion_tokens
        item.cached_tokens = self._cached_tokens
        item.mtp_drafts, item.mtp_accepted = self._mtp_drafts, self._mtp_accepted
        item.in_reasoning = self.in_reasoning
        item.finish_reason = self._finish if item.finished else None
        item.matched_stop = item.matched_stop if item.finished else None
        return item

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class AnswerStream(AsyncIterator[EngineOutput]):
    """The reader's hold on an answer. Closed or forgotten, it aborts the request.

    A class rather than an async generator: closing a generator that was never iterated runs none
    of its code, and the place would stay taken.
    """

    def __init__(self, answer: Answer, release: Callable[[Answer], None]) -> None:
        self._answer = answer
        self._release = release
        self._over = False

    async def __anext__(self) -> EngineOutput:
        if self._over:
            raise StopAsyncIteration
        try:
            item = await self._answer.next_item()
        except BaseException:
            await self.aclose()
            raise
        self._over = item.finished
        return item

    async def aclose(self) -> None:
        self._over = True
        self._release(self._answer)

    def __del__(self) -> None:
        self._release(self._answer)
