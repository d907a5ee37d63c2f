"""What all benchmarks share: the interval of a median, interleaved pairs, and the machine's name."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TypeVar

T = TypeVar("T")


def pairs(count: int, ours: Callable[[], T], other: Callable[[], T]) -> Iterator[tuple[T, T]]:
    """What both give, so many times. Who goes first alternates; a pair before the first warms both up."""
    for pair in range(-1, count):
        if pair % 2:
            our_value, other_value = ours(), other()
        else:
            other_value, our_value = other(), ours()
        if pair >= 0:
            yield our_value, other_value


def compare(name: str, unit: str, count: int, ours: Callable[[], float], other: Callable[[], float]) -> float:
    """Prints the pairs and the median ratio of ours to the other with its interval, and gives the median."""
    ratios = []
    for our_value, other_value in pairs(count, ours, other):
        ratios.append(our_value / other_value)
        print(f"pair {len(ratios)}: {our_value:.3g} and {other_value:.3g} {unit}", flush=True)
    return report(name, ratios)


def report(name: str, ratios: Sequence[float], digits: int = 2) -> float:
    """Prints the median of the ratios with its interval, and gives it."""
    low, high = interval(ratios)
    median = statistics.median(ratios)
    print(f"{name}: {median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})", flush=True)
    return median


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
    names = ("studiofleet", "starlette", "uvicorn", "pyzmq", "msgspec", "mlx", "mlx-lm")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    load = os.getloadavg()[0]
    return (
        f"{platform.platform()}, {os.cpu_count()} cores, load {load:.1f}, "
        f"Python {platform.python_version()}, {versions}"
    )
