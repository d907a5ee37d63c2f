"""What clients do to a gateway in a soak, in all their moods, and what became of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx

from tests.integration.cluster import chat, script, sse, text_of

PATIENCE_S = 120.0
PATH = "/v1/chat/completions"
BAD_BODIES = (b"{", b"[]", b"\xff", b'{"model": "fake-model"}', b'{"model": 7, "messages": []}')
TOKENS = 10

Act = Callable[[httpx.AsyncClient, str, random.Random], Awaitable[str]]


async def whole(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    answer = await client.post(url + PATH, json=_body(rng))
    if answer.status_code != 200:
        return str(answer.json()["error"]["code"])
    return _checked(answer.json()["choices"][0]["message"]["content"])


async def stream(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    async with client.stream("POST", url + PATH, json={**_body(rng), "stream": True}) as answer:
        if answer.status_code != 200:
            await answer.aread()
            return str(answer.json()["error"]["code"])
        events = sse([line async for line in answer.aiter_lines()])
    if isinstance(events[-1], dict) and "error" in events[-1]:
        return str(events[-1]["error"]["code"])
    return _checked(text_of(events)) if events[-1] == "[DONE]" else "no [DONE]"


async def left_in_the_middle(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    """A stream of which only the first lines are read."""
    async with client.stream("POST", url + PATH, json={**_body(rng), "stream": True}) as answer:
        lines = answer.aiter_lines()
        for _ in range(rng.randrange(4)):
            await anext(lines, None)
    return "ok"


async def left_before_the_answer(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    try:
        await client.post(url + PATH, json=_body(rng, delay_ms=100), timeout=rng.uniform(0.01, 0.3))
    except httpx.TimeoutException:
        return "ok"
    return "ok"


async def bad_body(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    headers = {"content-type": "application/json"}
    answer = await client.post(url + PATH, content=rng.choice(BAD_BODIES), headers=headers)
    return "ok" if answer.status_code == 400 else f"bad body: {answer.status_code}"


async def unknown_model(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    answer = await client.post(url + PATH, json=chat("hello", model=f"m-{rng.random()}"))
    return "ok" if answer.status_code == 404 else f"unknown model: {answer.status_code}"


async def aborted_upload(_client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    """A body of which half comes, then nothing."""
    parts = urlsplit(url)
    _reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        body = json.dumps(_body(rng)).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await writer.drain()
        if rng.random() < 0.5:
            writer.transport.abort()
    finally:
        writer.close()
    return "ok"


async def a_look(client: httpx.AsyncClient, url: str, rng: random.Random) -> str:
    path = rng.choice(("/v1/models", "/health", "/metrics", "/admin/state", f"/nothing-{rng.random()}"))
    answer = await client.get(url + path)
    right = 404 if path.startswith("/nothing") else 200
    return "ok" if answer.status_code == right else f"{path}: {answer.status_code}"


ACTS: dict[Act, int] = {
    whole: 40,
    stream: 35,
    left_in_the_middle: 8,
    left_before_the_answer: 4,
    bad_body: 4,
    unknown_model: 2,
    aborted_upload: 4,
    a_look: 3,
}
"""With their shares in percent."""


def _body(rng: random.Random, delay_ms: int = 2) -> dict[str, object]:
    # A text that never comes again: what is kept by it would grow.
    text = script(tokens=["a"], repeat=TOKENS, delay_ms=delay_ms)
    return {**chat(text), "seed": rng.randrange(2**40)}


def _checked(text: str) -> str:
    return "ok" if text == "a" * TOKENS else f"wrong text {text[:100]!r}"


async def burst(urls: Callable[[], list[str]], count: int, clients: int, rng: random.Random) -> Counter[str]:
    """So many requests by so many clients at once, each with a connection of its own that it reuses."""
    outcomes: Counter[str] = Counter()
    acts = iter(rng.choices(list(ACTS), list(ACTS.values()), k=count))

    async def client() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as connection:
            for act in acts:
                try:
                    outcome = await act(connection, rng.choice(urls() or ["http://127.0.0.1:9"]), rng)
                except (httpx.HTTPError, OSError) as error:
                    outcome = type(error).__name__
                outcomes[outcome] += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return outcomes
