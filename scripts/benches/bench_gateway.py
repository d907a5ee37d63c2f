"""CPU seconds of the gateway for each streamed token, against a plain Starlette server.

The server makes the same stream itself, without a worker. Streams are paced like a model's, so that
each token is written alone. With --against, another checkout of this project takes the server's place.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from measure import compare, machine
from servers import BENCHES, Cluster, Processes, processes, wait_for_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=100, help="in each stream")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="between two tokens of a stream")
    parser.add_argument("--against", type=Path, help="the gateway of another checkout, instead of Starlette")


def run(folder: Path, options: argparse.Namespace) -> None:
    with processes() as owned:
        engine = f'model = "m"\nengine = "fake"\nmax_num_seqs = {options.streams}'
        ours = Cluster(folder, engine, owned)
        name = "gateway / direct Starlette"
        if options.against is None:
            direct, direct_url = start_baseline(folder, options, owned)
        else:
            name = f"gateway / that of {options.against}"
            source = options.against.resolve()
            paths = {"PYTHONPATH": f"{source}:{source / 'deploy'}"}
            other = Cluster(folder / "other", engine, owned, environ=paths)
            direct, direct_url = other.gateway.pid, other.url
        print(machine())
        print(f"{options.streams} streams of {options.tokens} tokens, one each {options.delay_ms:g} ms")
        compare(
            name,
            "us a token",
            options.pairs,
            lambda: cost(ours.gateway.pid, ours.url, options),
            lambda: cost(direct, direct_url, options),
        )


def start_baseline(folder: Path, options: argparse.Namespace, owned: Processes) -> tuple[int, str]:
    url_file = folder / "baseline.url"
    script = BENCHES / "baselines" / "starlette_sse.py"
    delay_s = options.delay_ms / 1000
    command = [sys.executable, "-P", str(script), str(url_file), str(options.tokens), str(delay_s)]
    process = owned.start(command, cwd=folder)
    return process.pid, wait_for_text(url_file, process)


def cost(pid: int, url: str, options: argparse.Namespace) -> float:
    """Microseconds of CPU that the process needs for one token."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    tokens = asyncio.run(load(url, options))
    after = process.cpu_times()
    return ((after.user - before.user) + (after.system - before.system)) / tokens * 1e6


async def load(url: str, options: argparse.Namespace) -> int:
    """All streams at once; gives the tokens that came."""
    script = {"tokens": [" word"], "repeat": options.tokens, "delay_ms": options.delay_ms}
    message = {"role": "user", "content": "fake:" + json.dumps(script)}
    body = json.dumps({"model": "m", "stream": True, "messages": [message]}).encode()
    counts = await asyncio.gather(*(stream(url, body) for _ in range(options.streams)))
    if min(counts) < options.tokens:
        raise SystemExit(f"a stream brought {min(counts)} of {options.tokens} tokens")
    return sum(counts)


async def stream(url: str, body: bytes) -> int:
    """One stream, read with as little effort as possible."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    fields = f"host: x\r\nconnection: close\r\ncontent-length: {len(body)}"
    writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body)
    answer = bytearray()
    while data := await reader.read(65536):
        answer += data
    writer.close()
    await writer.wait_closed()
    return answer.count(b" word")
