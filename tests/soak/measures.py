"""What a soak measures, and when that counts as flat. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIB = 1024 * 1024
_MEMORY_SHARE = 0.05
_MEMORY_BYTES = 4 * MIB
_SPARE = {"series": 16, "young-threads": 1}
"""So many kinds of outcomes may still come that had not come before; and a process that is restarted
has one thread more or less, as the first tasks of its pool happen to meet."""

Sample = Mapping[str, float]
"""One look at everything while nothing is under way. The last word of a name is its kind: `gw-1 memory`."""


@dataclass(frozen=True)
class Row:
    """One measure: medians of the second and of the last quarter, and the most that the last may be."""

    name: str
    second: float
    last: float
    most: float

    @property
    def ok(self) -> bool:
        return self.last <= self.most


def allowed(name: str, second: float, limits: Mapping[str, float]) -> float:
    """The most that a measure may be in the end, given its second quarter. `limits` are fixed, by kind."""
    kind = name.rpartition(" ")[2]
    if kind in limits:
        return limits[kind]
    if kind == "memory":
        return second + max(_MEMORY_SHARE * second, _MEMORY_BYTES)
    return second + _SPARE.get(kind, 0)


def judge(samples: Sequence[Sample], limits: Mapping[str, float]) -> list[Row]:
    """A row for each measure. What has a fixed limit is judged by its largest value, all others by medians.

    Raises `ValueError` with fewer than eight samples, two in each quarter.
    """
    if len(samples) < 8:
        raise ValueError(f"{len(samples)} samples tell nothing; at least 8 are needed")
    quarter = len(samples) // 4
    rows = []
    for name in samples[-1]:
        kind = name.rpartition(" ")[2]
        values = [sample[name] for sample in samples if name in sample]
        second = statistics.median(values[quarter : 2 * quarter])
        last = statistics.median(values[-quarter:])
        if kind in limits:
            last = max(values)
        rows.append(Row(name, second, last, allowed(name, second, limits)))
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """Lines for people."""
    lines = [f"{'measure':28} {'2nd quarter':>12} {'last':>12} {'at most':>12}"]
    for row in rows:
        unit = MIB if row.name.endswith(("memory", "bytes")) else 1
        shown = [f"{value / unit:12.2f}" for value in (row.second, row.last, row.most)]
        lines.append(" ".join([f"{row.name:28}", *shown, "" if row.ok else "  GROWS"]).rstrip())
    return lines
