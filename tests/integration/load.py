"""Constant load of many clients, and what became of each request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import httpx

from tests.integration.cluster import chat, script, sse, text_of, wait_for

PATIENCE_S = 60.0
PAUSE_S = 0.02


class Load:
    """Clients that ask, one request after the other, half of them for streams, until the block ends.

    `outcomes` counts them: `ok`, else an error's code, or the kind of the broken connection. `body` asks for
    something else than a script of so many tokens, of which any answer will do.
    """

    def __init__(
        self,
        url: Callable[[], str],
        clients: int,
        *,
        tokens: int = 10,
        delay_ms: int = 10,
        body: dict[str, Any] | None = None,
    ) -> None:
        self._url = url
        self._clients = clients
        self._body = body or chat(script(tokens=["a"], repeat=tokens, delay_ms=delay_ms))
        self._expected = "a" * tokens if body is None else None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._over = False
        self.outcomes: Counter[str] = Counter()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._thread.join()

    def wait_for_answers(self, count: int) -> None:
        """Return when so many more requests were answered."""
        before = self.outcomes["ok"]
        wait_for(lambda: self.outcomes["ok"] >= before + count, f"{count} more answers: {self.outcomes}")

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(live=number % 2 == 0) for number in range(self._clients)))

    async def _client(self, *, live: bool) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            while not self._over:
                try:
                    outcome = await (self._stream(client) if live else self._whole(client))
                except httpx.HTTPError as error:
                    outcome = type(error).__name__
                self.outcomes[outcome] += 1
                await asyncio.sleep(PAUSE_S if outcome == "ok" else 10 * PAUSE_S)

    async def _whole(self, client: httpx.AsyncClient) -> str:
        answer = await client.post(f"{self._url()}/v1/chat/completions", json=self._body)
        if answer.status_code != 200:
            return str(answer.json()["error"]["code"])
        text = answer.json()["choices"][0]["message"]["content"]
        return "ok" if self._is_whole(text) else f"wrong text {text!r}"

    async def _stream(self, client: httpx.AsyncClient) -> str:
        body = {**self._body, "stream": True}
        async with client.stream("POST", f"{self._url()}/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return str(answer.json()["error"]["code"])
            events = sse([line async for line in answer.aiter_lines()])
        if isinstance(events[-1], dict) and "error" in events[-1]:
            return str(events[-1]["error"]["code"])
        whole = self._is_whole(text_of(events)) and events[-1] == "[DONE]"
        return "ok" if whole else f"wrong stream {text_of(events)!r} {events[-1]!r}"

    def _is_whole(self, text: str) -> bool:
        return bool(text) if self._expected is None else text == self._expected
