"""What an engine takes: places, tokens of the KV cache, the model's context. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.base import EngineBusy
from worker.engine.output import PromptError

BYTES_PER_TOKEN = 4
"""A guess until the prompt is tokenized."""
AHEAD = 256
"""Tokens of an answer that are promised before they are there. Few are as long as they may be; where all get
too long, the newest waits."""


@dataclass(frozen=True)
class Limits:
    """Of one engine. `max_waiting` None stands for max_num_seqs // 8, `kv_tokens` None for no bound."""

    max_num_seqs: int
    max_waiting: int | None = None
    kv_tokens: int | None = None

    @property
    def places(self) -> int:
        waiting = self.max_num_seqs // 8 if self.max_waiting is None else self.max_waiting
        return self.max_num_seqs + waiting

    def check_places(self, in_hand: int) -> None:
        """Raises `EngineBusy`."""
        if in_hand >= self.places:
            raise EngineBusy(f"all {self.places} places of the engine are taken")

    def check_kv(self, wanted: int, others: int) -> None:
        """Raises `EngineBusy` unless so many tokens fit beside those of the others; alone, any do."""
        if self.kv_tokens is not None and others and wanted + others > self.kv_tokens:
            raise EngineBusy(
                f"the KV cache has {max(0, self.kv_tokens - others)} tokens left, {wanted} are needed"
            )

    def estimate(self, prompt_bytes: int, max_tokens: int) -> int:
        """The promise to a request before its prompt is tokenized."""
        return self.promise(prompt_bytes // BYTES_PER_TOKEN, max_tokens)

    def promise(self, prompt_tokens: int, max_tokens: int, said: int = 0) -> int:
        """Tokens of the KV cache that are set apart for a request which has `said` so many already."""
        wanted = prompt_tokens + min(max_tokens, said + AHEAD)
        return wanted if self.kv_tokens is None else min(wanted, self.kv_tokens)

    def fit(self, prompt_tokens: int, max_tokens: int, context: int | None) -> int:
        """`max_tokens`, cut to the room that the prompt leaves.

        Raises `PromptError` when it leaves none, however long one waits.
        """
        bounds = [bound for bound in (context, self.kv_tokens) if bound is not None]
        if not bounds:
            return max_tokens
        room = min(bounds) - prompt_tokens
        if room <= 0:
            raise PromptError(
                # In the words by which agents of two vendors know that they have to shorten it.
                f"prompt is too long: {prompt_tokens} tokens > {min(bounds)} maximum"
                f" (this model's maximum context length is {min(bounds)} tokens); shorten the prompt",
                "context_length_exceeded",
            )
        return min(max_tokens, room)


def check_length(tokens: int, most: int | None, field: str) -> None:
    """Raises `PromptError` for one text of several that is longer than the model takes."""
    if most is not None and tokens > most:
        raise PromptError(
            f"{field} has {tokens} tokens; this model's maximum context length is {most} tokens; shorten it",
            "context_length_exceeded",
            param=field,
        )
