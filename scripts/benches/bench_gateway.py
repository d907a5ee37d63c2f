"""CPU of the gateway for each streamed token, against a plain Starlette server and LiteLLM's proxy.

The Starlette server makes the same streams itself, without a worker. paced: each token is written alone, as
a model's are; saturated: as fast as they come. litellm: the paced streams through its proxy, which stands
before the Starlette server. first: what the way through gateway, ZeroMQ and worker adds to the first token,
one request after the other. idle: memory of the gateway for streams that wait. Each server has the first
core for itself. With --against, the gateway of another checkout takes Starlette's place.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from pathlib import Path

import psutil
from litellm_proxy import LITELLM, start_litellm
from measure import interval, machine, pairs, report
from raw_streams import Load, ask, cost, first_tokens_ms, request
from servers import BENCHES, PATIENCE_S, Cluster, Processes, processes, wait_for_text

PARTS = ("paced", "saturated", "litellm", "first", "idle")
ENGINE = 'model = "m"\nengine = "fake"\nmax_num_seqs = {}'
FIRST = 200
"""First tokens in each measurement."""
IDLE = 1000
SERVER, OTHERS = {0}, set(range(1, os.cpu_count() or 1)) or {0}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=100, help="in each stream")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="between two tokens of a paced stream")
    parser.add_argument("--against", type=Path, help="another checkout: paced and saturated only")


def run(folder: Path, options: argparse.Namespace) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, OTHERS)
    print(machine())
    with processes() as owned:
        bench = _Bench(folder, options, owned)
        for part in options.parts:
            if options.against is None or part in ("paced", "saturated"):
                getattr(bench, part)()


class _Bench:
    """The parts, over one gateway of ours."""

    def __init__(self, folder: Path, options: argparse.Namespace, owned: Processes) -> None:
        self._folder = folder
        self._options = options
        self._owned = owned
        self._ours = self._cluster("ours", max(options.streams))

    def paced(self) -> None:
        self._compare("paced", self._options.delay_ms)

    def saturated(self) -> None:
        self._compare("saturated", 0.0)

    def _compare(self, name: str, delay_ms: float) -> None:
        if self._options.against is None:
            other_name, other = "direct Starlette", self._baseline(delay_ms, SERVER)
        else:
            other_name = f"that of {self._options.against}"
            source = self._options.against.resolve()
            path = {"PYTHONPATH": f"{source}:{source / 'deploy'}"}
            cluster = self._cluster(f"other-{name}", max(self._options.streams), path)
            other = cluster.gateway.pid, cluster.url
        for streams in self._options.streams:
            load = Load(streams, self._options.tokens, delay_ms)
            self._side_by_side(f"{name}, {streams} streams, gateway / {other_name}", load, *other)

    def litellm(self) -> None:
        backend_url = self._baseline(self._options.delay_ms, OTHERS)[1]
        process, url = start_litellm(self._folder, backend_url, self._owned, SERVER)
        for streams in self._options.streams:
            load = Load(streams, self._options.tokens, self._options.delay_ms)
            self._side_by_side(f"{streams} streams, gateway / {LITELLM}", load, process.pid, url)

    def _side_by_side(self, name: str, load: Load, pid: int, url: str) -> None:
        runs = []
        for ours, other in pairs(
            self._options.pairs,
            lambda: cost(self._ours.gateway.pid, self._ours.url, load),
            lambda: cost(pid, url, load),
        ):
            runs.append((ours, other))
            told = " and ".join(f"{each.cpu_us:.3g} us at {each.tokens_per_s:.0f}/s" for each in runs[-1])
            print(f"pair {len(runs)}: {told}", flush=True)
        report(f"{name}, CPU a token", [ours.cpu_us / other.cpu_us for ours, other in runs], digits=3)
        report(f"{name}, tokens/s", [ours.tokens_per_s / other.tokens_per_s for ours, other in runs])

    def first(self) -> None:
        url = self._baseline(0.0, SERVER)[1]
        found = list(
            pairs(
                self._options.pairs,
                lambda: first_tokens_ms(self._ours.url, FIRST),
                lambda: first_tokens_ms(url, FIRST),
            )
        )
        for name, place in (("p50", FIRST // 2), ("p99", FIRST * 99 // 100)):
            added = [ours[place] - other[place] for ours, other in found]
            whole = statistics.median(ours[place] for ours, _other in found)
            low, high = interval(added)
            print(
                f"first token, {name}: {whole:.2f} ms, of it added to direct Starlette's: "
                f"{statistics.median(added):.2f} ({low:.2f} to {high:.2f})",
                flush=True,
            )

    def idle(self) -> None:
        cluster = self._cluster("idle", IDLE)
        asyncio.run(_wake_up(cluster.url))
        gateway = psutil.Process(cluster.gateway.pid)
        before = gateway.memory_info().rss
        grown = asyncio.run(_hold(cluster.url, gateway)) - before
        print(f"{IDLE} idle streams: {grown / 2**20:.1f} MiB, {grown / IDLE / 1024:.1f} KiB each", flush=True)

    def _cluster(self, name: str, slots: int, environ: dict[str, str] | None = None) -> Cluster:
        return Cluster(
            self._folder / name,
            ENGINE.format(slots),
            self._owned,
            gateway_cores=SERVER,
            worker_cores=OTHERS,
            environ=environ,
        )

    def _baseline(self, delay_ms: float, cores: set[int]) -> tuple[int, str]:
        url_file = self._folder / f"baseline-{delay_ms}-{min(cores)}.url"
        script = BENCHES / "baselines" / "starlette_sse.py"
        settings = [str(url_file), str(self._options.tokens), str(delay_ms / 1000)]
        process = self._owned.start([sys.executable, "-P", str(script), *settings], cores, cwd=self._folder)
        return process.pid, wait_for_text(url_file, process)


async def _wake_up(url: str) -> None:
    """What a process needs once is there after its first streams."""
    for _ in range(20):
        reader, writer = await ask(url, request())
        await reader.read()
        writer.close()


async def _hold(url: str, process: psutil.Process) -> int:
    """The memory of the process while it holds streams that have begun and wait for their first token."""
    body = request(prefill_ms=10 * PATIENCE_S * 1000)
    held = []
    for _ in range(IDLE):
        reader, writer = await ask(url, body)
        await reader.readuntil(b"assistant")
        held.append(writer)
    size = process.memory_info().rss
    for writer in held:
        writer.close()
    return size
