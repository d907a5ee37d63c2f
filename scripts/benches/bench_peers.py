"""Other MLX servers side by side: mlx_lm.server and vllm-mlx, the same model folder, the same OpenBLAS.

plain, seeded and mixed: tokens per second at 1, 4, 8 and 16 streams (mixed: greedy, seeded, top-p and
top-k requests together). prefill: while four streams run, a prompt of 2,000 tokens comes; the longest gap
of the running streams and the first token of the long prompt, in seconds. prefix: the first token of a
prompt of 1,000 tokens that began like an earlier one, as a share of the same server's time for a new one.
vllm-mlx comes into an environment of its own. Whoever is not measured stands still meanwhile, no prompt
comes twice, and the tokens of each answer are told, since answers may end by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes.util
import itertools
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_decode import WORDS, embedded_folder
from measure import interval, machine
from servers import Cluster, Processes, environment, processes, start_peer
from streams import Answer, Messages, ask, ask_all, speed

PARTS = ("plain", "seeded", "mixed", "prefill", "prefix")
ENVIRONMENT = Path("~/.cache/studiofleet/bench-peers").expanduser()
VLLM_MLX = "vllm-mlx==0.6.0"
VLLM_MLX_NEEDS = (
    "mlx[cpu]==0.32.4" if sys.platform == "linux" else "mlx==0.32.4",
    *("mlx-lm>=0.31.3,<0.32", "fastapi", "uvicorn", "httpx", "psutil", "prometheus-client", "jsonschema"),
    *("pytz", "tabulate", "requests", "pillow", "python-multipart"),
)
"""For text; its own list brings PyTorch and much more."""
SERIES = itertools.count(0, 10_000)
"""The first numbers of the prompts of each series of measurements: no server has read any of them."""
ENGINE = 'model = {model}\nserved_name = "m"\nmax_num_seqs = 16'


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    model: str
    process: subprocess.Popen[bytes] | None = None
    """None: it does next to nothing while it waits."""

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Some servers look for work all the time; they stand still while others are measured."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48, help="of each answer at most")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help="where vllm-mlx is installed")


def run(folder: Path, options: argparse.Namespace) -> None:
    with processes() as owned:
        servers = start(folder, options.environment, owned)
        print(machine())
        parts: dict[str, Callable[[], None]] = {
            "plain": lambda: throughput("plain", servers, options, lambda _n: {}),
            "seeded": lambda: throughput(
                "seeded", servers, options, lambda n: {"seed": n, "temperature": 1.0, "top_p": 1.0}
            ),
            "mixed": lambda: throughput("mixed", servers, options, mixed),
            "prefill": lambda: long_prefill(servers, options),
            "prefix": lambda: shared_prefix(servers, options),
        }
        for part in options.parts:
            parts[part]()


def mixed(number: int) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.8, "top_p": 1.0, "seed": number},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.7, "top_p": 1.0, "top_k": 40},
    )
    return kinds[number % len(kinds)]


def throughput(
    part: str, servers: list[Server], options: argparse.Namespace, settings: Callable[[int], dict[str, Any]]
) -> None:
    for streams in options.streams:
        wishes = [{"max_tokens": options.tokens, **settings(number)} for number in range(streams)]
        throughput_of(f"{part}, {streams} streams, tokens/s", servers, options.pairs, wishes)


def throughput_of(name: str, servers: list[Server], pairs: int, wishes: list[dict[str, Any]]) -> None:
    """With as many streams as wishes."""
    lengths: dict[str, list[int]] = {server.name: [] for server in servers}
    series = next(SERIES)

    def measure(server: Server, turn: int) -> float:
        conversations = [story(series + turn * 100 + number) for number in range(len(wishes))]
        answers = asyncio.run(ask_all(server.url, server.model, conversations, wishes))
        lengths[server.name] += [answer.tokens for answer in answers]
        return speed(answers)

    side_by_side(name, servers, pairs, measure)
    means = (f"{name} {statistics.mean(counts):.1f}" for name, counts in lengths.items())
    print(f"  tokens an answer: {', '.join(means)}", flush=True)


def long_prefill(servers: list[Server], options: argparse.Namespace) -> None:
    """Both figures come from the same runs."""
    firsts: dict[tuple[str, int], float] = {}
    series = next(SERIES)

    def gap(server: Server, turn: int) -> float:
        longest, firsts[server.name, turn] = asyncio.run(interrupted(server, series + turn * 100))
        return longest

    side_by_side("prefill, longest gap of the running streams, s", servers, options.pairs, gap)
    side_by_side(
        "prefill, first token of the long prompt, s",
        servers,
        options.pairs,
        lambda s, turn: firsts[s.name, turn],
    )


async def interrupted(server: Server, number: int) -> tuple[float, float]:
    """The longest gap of four running streams while a long prompt is read, and its first token's time."""
    answers = [Answer() for _ in range(4)]
    running = [
        asyncio.create_task(ask(server.url, server.model, story(number + n), answer, max_tokens=300))
        for n, answer in enumerate(answers)
    ]
    while not all(len(answer.pieces) > 4 for answer in answers):  # noqa: ASYNC110 (they are written elsewhere)
        await asyncio.sleep(0.05)
    long = await ask(server.url, server.model, essay(number, 2000), max_tokens=2)
    longest = max(answer.longest_gap_s(long.begun, long.pieces[0]) for answer in answers)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return longest, long.first_s


def shared_prefix(servers: list[Server], options: argparse.Namespace) -> None:
    series = next(SERIES)

    def share(server: Server, turn: int) -> float:
        questions = ("What is it about?", "Who is in it?")
        cold, warm = (
            asyncio.run(ask(server.url, server.model, essay(series + turn, 1000, question), max_tokens=4))
            for question in questions
        )
        return warm.first_s / cold.first_s

    side_by_side("prefix, warm / cold first token", servers, options.pairs, share)


def side_by_side(
    name: str, servers: list[Server], pairs: int, measure: Callable[[Server, int], float]
) -> None:
    """Each server in turn, in another order each time; prints the ratio of ours, the first, to each other."""
    values: dict[str, list[float]] = {server.name: [] for server in servers}
    for turn in range(pairs + 1):  # the first one warms all up
        shift = turn % len(servers)
        for server in servers[shift:] + servers[:shift]:
            with server.awake():
                value = measure(server, turn)
            if turn:
                values[server.name].append(value)
    print(name)
    ours = values[servers[0].name]
    for server in servers:
        theirs = values[server.name]
        low, high = interval([a / b for a, b in zip(ours, theirs, strict=True)])
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        compared = f"ours / it: {ratio:.2f} ({low:.2f} to {high:.2f})"
        print(f"  {server.name}: {statistics.median(theirs):.3g}; {compared}")
    sys.stdout.flush()


def story(number: int) -> Messages:
    first, second = WORDS[number % 11], WORDS[number // 11 % 11]
    text = f"Write a long story, number {number}, about the {first} and the {second}."
    return [{"role": "user", "content": text}]


def essay(number: int, tokens: int, question: str = "What is it about?") -> Messages:
    """A text of about so many tokens, a little more than one a word."""
    words = (f"{WORDS[(number + n * 7) % 11]} {WORDS[(n * n + number) % 11]}" for n in itertools.count())
    text = " ".join(itertools.islice(words, tokens // 2))
    return [{"role": "user", "content": f"Text {number}: {text}. {question}"}]


def start(folder: Path, peers: Path, owned: Processes) -> list[Server]:
    """Ours first."""
    model = embedded_folder()
    blas = {"LD_PRELOAD": library} if (library := ctypes.util.find_library("openblas")) else {}
    ours = Cluster(folder, ENGINE.format(model=json.dumps(str(model))), owned)
    lm = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model)]
    programs = environment(peers, ["--no-deps", VLLM_MLX], VLLM_MLX_NEEDS)
    vllm = [str(programs / "vllm-mlx"), "serve", str(model), "--continuous-batching", "--max-num-seqs", "16"]
    return [
        Server("studiofleet", ours.url, "m"),
        peer("mlx_lm.server", str(model), lm, blas, owned, folder),
        peer("vllm-mlx", str(model), vllm, blas, owned, folder),
    ]


def peer(
    name: str, model: str, command: list[str], environ: dict[str, str], owned: Processes, folder: Path
) -> Server:
    """Starts it and waits until it answers."""
    process, url = start_peer(name, command, {**environ, "HF_HUB_OFFLINE": "1"}, owned, folder)
    process.send_signal(signal.SIGSTOP)
    return Server(name, url, model, process)
