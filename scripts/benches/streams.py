"""Chat streams over HTTP with the time of each piece, from any server that speaks OpenAI's dialect."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

PATIENCE_S = 900.0
CONNECTIONS = 5
"""How often to connect: a server with a short queue of connections resets some that come together."""
Messages = list[dict[str, str]]


@dataclass
class Answer:
    """What one stream brought, with times of the clock `time.perf_counter`."""

    begun: float = 0.0
    pieces: list[float] = field(default_factory=list)
    tokens: int = 0
    text: str = ""

    @property
    def first_s(self) -> float:
        return self.pieces[0] - self.begun

    def longest_gap_s(self, since: float, until: float) -> float:
        """Between two pieces, of the part that lies in that time."""
        times = [since, *(t for t in self.pieces if since <= t <= until), until]
        return max(b - a for a, b in pairwise(times))


async def ask(
    url: str, model: str, messages: Messages, into: Answer | None = None, **settings: Any
) -> Answer:
    """One streamed answer, written as it comes `into` one that the caller can look at.

    Raises what httpx raises, and `SystemExit` for a stream without a token.
    """
    body = {"model": model, "messages": messages, "stream": True, "temperature": 0, **settings}
    body["stream_options"] = {"include_usage": True}
    answer = into or Answer()
    answer.begun = time.perf_counter()
    for left in reversed(range(CONNECTIONS)):
        try:
            await _stream(url, body, answer)
            break
        except httpx.TransportError:
            if answer.pieces or not left:
                raise
    if not answer.pieces:
        raise SystemExit(f"{url} gave no answer")
    answer.tokens = answer.tokens or len(answer.pieces)
    return answer


async def _stream(url: str, body: dict[str, Any], answer: Answer) -> None:
    async with (
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                _take(answer, json.loads(line[6:]))


def _take(answer: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        raise SystemExit(f"a stream ended with {chunk['error']}")
    for choice in chunk.get("choices", ()):
        text = choice["delta"].get("content") or ""
        if text or (choice.get("finish_reason") and not answer.pieces):  # the end, where there is no text
            answer.pieces.append(time.perf_counter())
            answer.text += text
    if usage := chunk.get("usage"):
        answer.tokens = int(usage["completion_tokens"])


async def ask_all(
    url: str, model: str, conversations: Sequence[Messages], settings: Sequence[dict[str, Any]]
) -> list[Answer]:
    """All at once."""
    return list(
        await asyncio.gather(
            *(
                ask(url, model, messages, **each)
                for messages, each in zip(conversations, settings, strict=True)
            )
        )
    )


def speed(answers: Sequence[Answer]) -> float:
    """Tokens per second, from the first request to the last piece."""
    begun = min(answer.begun for answer in answers)
    return sum(answer.tokens for answer in answers) / (max(a.pieces[-1] for a in answers) - begun)
