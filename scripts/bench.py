"""Measures Studiofleet against baselines that cannot be slowed, side by side in one run.

`gateway`: CPU seconds of the gateway process per streamed token, against a plain Starlette server
that makes the same stream itself, without a worker. Streams are paced like a model's, so that each
token is written alone. Pairs are interleaved; the ratio is the median with its 95 % interval.

`batching`: eight questions to one worker on the embedded model, all at once against one after the
other, over HTTP: wall time of the one as a share of the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "Give me a word that rhymes with cat.",
    "What do bees make?",
    "Say hello in Spanish.",
)
FAKE = 'model = "m"\nengine = "fake"'
EMBEDDED = 'model = "embedded"\nprefix_cache_mb = 0'
"""Without the prefix cache, which would spare the later runs their prompts."""
CONFIG = """version = 1
[gateway]
id = "gw"
http = "127.0.0.1:0"
[log]
level = "warning"
[[workers]]
id = "w"
{engine}
max_num_seqs = {streams}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    gateway = commands.add_parser("gateway", help="the gateway against a plain Starlette server")
    gateway.add_argument("--streams", type=int, default=64)
    gateway.add_argument("--tokens", type=int, default=100, help="in each stream")
    gateway.add_argument("--delay-ms", type=float, default=20.0, help="between two tokens of a stream")
    gateway.add_argument("--pairs", type=int, default=9)
    batching = commands.add_parser("batching", help="eight questions together against the eight alone")
    batching.add_argument("--tokens", type=int, default=48, help="of each answer at most")
    batching.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    if options.pairs < 9:
        parser.error("fewer than 9 pairs give no interval")
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        {"gateway": bench_gateway, "batching": bench_batching}[options.command](Path(folder), options)
    return 0


def bench_gateway(folder: Path, options: argparse.Namespace) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        direct, direct_url = start_baseline(folder, options, processes)
        ours, our_url = start_cluster(folder, FAKE, options.streams, processes)
        print(machine())
        print(f"{options.streams} streams of {options.tokens} tokens, one each {options.delay_ms:g} ms")
        ratios = []
        for pair in range(-1, options.pairs):  # the first one warms both up
            runs = [(ours, our_url), (direct, direct_url)]
            costs = [cost(process.pid, url, options) for process, url in (runs if pair % 2 else runs[::-1])]
            our_cost, direct_cost = costs if pair % 2 else costs[::-1]
            if pair >= 0:
                ratios.append(our_cost / direct_cost)
                print(f"pair {pair + 1}: {our_cost:.1f} us and {direct_cost:.1f} us a token")
        low, high = interval(ratios)
        print(f"gateway / direct Starlette: {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})")
    finally:
        stop(processes)


def bench_batching(folder: Path, options: argparse.Namespace) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    try:
        _gateway, url = start_cluster(folder, EMBEDDED, len(QUESTIONS), processes)
        print(machine())
        ratios = []
        for pair in range(-1, options.pairs):
            alone_s, alone = asyncio.run(asked_alone(url, options.tokens))
            together_s, together = asyncio.run(asked_together(url, options.tokens))
            if pair >= 0:
                ratios.append(together_s / alone_s)
                equal = sum(a == b for a, b in zip(alone, together, strict=True))
                print(f"pair {pair + 1}: {together_s:.2f} s and {alone_s:.2f} s, {equal} of 8 texts equal")
        low, high = interval(ratios)
        print(f"together / the eight alone: {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})")
    finally:
        stop(processes)


async def asked_alone(url: str, tokens: int) -> tuple[float, list[str]]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        begun = time.perf_counter()
        texts = [await ask(client, question, tokens) for question in QUESTIONS]
        return time.perf_counter() - begun, texts


async def asked_together(url: str, tokens: int) -> tuple[float, list[str]]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        begun = time.perf_counter()
        texts = await asyncio.gather(*(ask(client, question, tokens) for question in QUESTIONS))
        return time.perf_counter() - begun, texts


async def ask(client: httpx.AsyncClient, question: str, tokens: int) -> str:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": tokens}
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"])


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        process.wait(timeout=PATIENCE_S)


def start_baseline(
    folder: Path, options: argparse.Namespace, processes: list[subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], str]:
    url_file = folder / "baseline.url"
    script = ROOT / "scripts" / "baselines" / "starlette_sse.py"
    delay_s = options.delay_ms / 1000
    command = [sys.executable, "-P", str(script), str(url_file), str(options.tokens), str(delay_s)]
    processes.append(subprocess.Popen(command, cwd=folder))
    return processes[-1], wait_for_text(url_file, processes[-1])


def start_cluster(
    folder: Path, engine: str, slots: int, processes: list[subprocess.Popen[bytes]]
) -> tuple[subprocess.Popen[bytes], str]:
    home = folder / "home"
    home.mkdir(mode=0o700)
    config = home / "cluster.toml"
    config.write_text(CONFIG.format(engine=engine, streams=slots))
    environ = {**os.environ, "STUDIOFLEET_HOME": str(home)}
    for kind, process_id in (("gateway", "gw"), ("worker", "w")):
        command = [sys.executable, "-P", "-m", kind, "--config", str(config), "--id", process_id]
        processes.append(subprocess.Popen(command, env=environ, cwd=home))
    gateway = processes[-2]
    url = wait_for_text(home / "run" / "gw.url", gateway)
    deadline = time.monotonic() + PATIENCE_S
    while httpx.get(url + "/health/ready").status_code != 200:
        if time.monotonic() > deadline:
            raise SystemExit("the worker does not become ready")
        time.sleep(0.05)
    return gateway, url


def wait_for_text(path: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text().strip()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"a server did not start: {process.args}")
        time.sleep(0.05)
    return path.read_text().strip()


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


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, from the order of the values alone."""
    ordered = sorted(values)
    n = len(ordered)
    tail, outside, term = 0, 0.0, 0.5**n
    while outside + term <= 0.025:
        outside += term
        tail += 1
        term = term * (n - tail + 1) / tail
    return ordered[tail - 1], ordered[n - tail]


def machine() -> str:
    names = ("studiofleet", "starlette", "uvicorn", "pyzmq", "msgspec")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    load = os.getloadavg()[0]
    return (
        f"{platform.platform()}, {os.cpu_count()} cores, load {load:.1f}, "
        f"Python {platform.python_version()}, {versions}"
    )


if __name__ == "__main__":
    sys.exit(main())
