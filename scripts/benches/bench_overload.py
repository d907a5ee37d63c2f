"""Three times as many requests as fake workers can serve: what is served, and how soon the rest is refused.

Capacity is measured in the same run, by clients that ask again as soon as they are answered. The gateway runs
on the first core, workers and clients on the others, where the system can say so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure import machine, report
from raw_streams import ask, request
from servers import Cluster, processes

WORKERS, SLOTS, DELAY_MS = 2, 8, 25.0
LENGTHS = range(10, 31)
MEAN = sum(LENGTHS) / len(LENGTHS)
ENGINE = f'engine = "fake"\nmodel = "m"\nmax_num_seqs = {SLOTS}\nmax_waiting = 0'
_RETRY_AFTER = re.compile(rb"\r\nretry-after: [1-9]", re.IGNORECASE)


@dataclass
class Told:
    """What became of the requests of one spell of time, with times of `time.perf_counter`."""

    served: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many tokens."""
    refused_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0

    async def one(self, url: str) -> None:
        tokens = random.choice(LENGTHS)  # answers must not all end together
        body = request(repeat=tokens, delay_ms=DELAY_MS)
        began = time.perf_counter()
        reader, writer = await ask(url, body)
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 200:
            await reader.read()
            self.served.append((time.perf_counter(), tokens))
        else:
            self.refused_ms.append((time.perf_counter() - began) * 1e3)
            self.without_retry_after += _RETRY_AFTER.search(head) is None
        self.statuses[status] += 1
        writer.close()
        await writer.wait_closed()

    def rate(self, since: float, until: float) -> float:
        """Tokens a second, of whole answers."""
        return sum(tokens for at, tokens in self.served if since <= at < until) / (until - since)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--times", type=float, default=3.0, help="the capacity that is asked for")


def run(folder: Path, options: argparse.Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    first, others = set(cores[:1]), set(cores[1:]) or set(cores)
    with processes() as owned:
        engines = [ENGINE] * WORKERS
        url = Cluster(folder, engines, owned, gateway_cores=first, worker_cores=others).url
        if others:
            os.sched_setaffinity(0, others)
        print(machine())
        asyncio.run(_measure(url, options))


async def _measure(url: str, options: argparse.Namespace) -> None:
    shares, told = [], Told()
    for pair in range(1, options.pairs + 1):
        capacity = await _capacity(url, options.seconds)
        rate = await _overloaded(url, options.times * capacity / MEAN, options.seconds, told)
        shares.append(rate / capacity)
        print(f"pair {pair}: {rate:.1f} of {capacity:.1f} tokens/s", flush=True)
    report(f"served at {options.times:g} times the capacity, as a share of it", shares, 3)
    _tell_refusals(told)


async def _capacity(url: str, seconds: float) -> float:
    """Tokens a second when there is always somebody who waits, and nobody is refused."""
    told = Told()
    began = time.perf_counter()
    until = began + 1 + seconds

    async def client() -> None:
        while time.perf_counter() < until:
            await told.one(url)

    await asyncio.gather(*(client() for _ in range(WORKERS * SLOTS * 3 // 2)))
    if told.refused_ms:
        raise SystemExit(f"refused below the load: {told.statuses}")
    return told.rate(began + 1, until)


async def _overloaded(url: str, a_second: float, seconds: float, told: Told) -> float:
    """Tokens a second while so many requests come, from a second after the first on."""
    began = time.perf_counter()
    requests = []
    for number in range(int(a_second * (1 + seconds))):
        await asyncio.sleep(max(0.0, began + number / a_second - time.perf_counter()))
        requests.append(asyncio.create_task(told.one(url)))
    until = time.perf_counter()
    await asyncio.gather(*requests)
    return told.rate(began + 1, until)


def _tell_refusals(told: Told) -> None:
    times = sorted(told.refused_ms)
    print(
        f"{len(times)} refused of {told.statuses.total()} requests ({dict(told.statuses)}): after"
        f" {_at(times, 0.5):.1f} ms (median), {_at(times, 0.99):.1f} ms (99th percentile),"
        f" {times[-1]:.1f} ms (longest); {told.without_retry_after} without Retry-After"
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]
