"""Many chat streams at once, read with as little effort as possible, and what they cost the server."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

WORD = b" word"


@dataclass(frozen=True)
class Load:
    """So many streams at once, of so many tokens each."""

    streams: int
    tokens: int
    delay_ms: float
    """Between two tokens of a stream."""

    @property
    def body(self) -> bytes:
        return request(repeat=self.tokens, delay_ms=self.delay_ms)


@dataclass(frozen=True)
class Cost:
    cpu_us: float
    """Of the process, for each token."""
    tokens_per_s: float


def request(**script: Any) -> bytes:
    """What to ask of a fake engine; others take it for a question."""
    text = "fake:" + json.dumps({"tokens": [WORD.decode()], **script})
    message = {"role": "user", "content": text}
    return json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()


def cost(pid: int, url: str, load: Load) -> Cost:
    process = psutil.Process(pid)
    before, began = _cpu_s(process), time.perf_counter()
    tokens = asyncio.run(run(url, load))
    seconds = time.perf_counter() - began
    return Cost((_cpu_s(process) - before) / tokens * 1e6, tokens / seconds)


def _cpu_s(process: psutil.Process) -> float:
    return sum(map(_own_cpu_s, (process, *process.children(recursive=True))))


def _own_cpu_s(process: psutil.Process) -> float:
    """By the scheduler's clock, where the system tells it: the other one counts in hundredths."""
    threads = list(Path(f"/proc/{process.pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


async def run(url: str, load: Load) -> int:
    """Gives the tokens that came."""
    counts = await asyncio.gather(*(_count(url, load.body) for _ in range(load.streams)))
    if min(counts) < load.tokens:
        raise SystemExit(f"a stream brought {min(counts)} of {load.tokens} tokens")
    return sum(counts)


async def _count(url: str, body: bytes) -> int:
    reader, writer = await ask(url, body)
    answer = bytearray()
    while data := await reader.read(65536):
        answer += data
    writer.close()
    await writer.wait_closed()
    return answer.count(WORD)


async def ask(url: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    fields = f"host: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body)
    return reader, writer


def first_tokens_ms(url: str, count: int) -> list[float]:
    """From the request to the first token, one request after the other; in ascending order."""

    async def all_of_them() -> list[float]:
        return sorted([await _first_token_ms(url) for _ in range(count)])

    return asyncio.run(all_of_them())


async def _first_token_ms(url: str) -> float:
    began = time.perf_counter()
    reader, writer = await ask(url, request())
    await reader.readuntil(WORD)
    seconds = time.perf_counter() - began
    writer.close()
    await writer.wait_closed()
    return seconds * 1e3
