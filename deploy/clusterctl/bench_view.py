"""A benchmark's figures as tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group

from clusterctl.bench_figures import Figures, Level, Percentiles
from clusterctl.tables import add_row, new_table, plain

_FIGURES = (
    "requests",
    "failed",
    "first token p50/p95/p99",
    "gap p50/p95/p99",
    "tokens/s p50/p95/p99",
)


def bench_view(levels: Iterable[Level], reasons: Mapping[str, str]) -> Group:
    """Each level, what each worker did of it, and what failed."""
    levels = list(levels)
    total = new_table("at once", *_FIGURES, "tokens/s together", "seconds")
    for level in levels:
        cells = (*_cells(level.total), f"{level.tokens_per_s:.1f}", f"{level.seconds:.1f}")
        add_row(total, level.concurrency, *cells)
    workers = new_table("at once", "worker", *_FIGURES)
    for level in levels:
        for worker_id, figures in level.workers.items():
            add_row(workers, level.concurrency, worker_id, *_cells(figures))
    return Group(total, "", workers, *(plain(line) for line in _remarks(levels, reasons)))


def _cells(figures: Figures) -> tuple[object, ...]:
    return (
        figures.requests,
        figures.failed,
        _milliseconds(figures.first_token_s),
        _milliseconds(figures.gap_s),
        _three(figures.tokens_per_s, 1, ".1f", ""),
    )


def _remarks(levels: Iterable[Level], reasons: Mapping[str, str]) -> list[str]:
    lines = []
    for level in levels:
        if level.cut_short:
            lines.append(f"{level.concurrency} at once: cut short, so that it says little of longer times")
        for kind, count in level.total.errors.items():
            why = reasons.get(kind, "")
            lines.append(f"{level.concurrency} at once: {count} failed, {kind}{why and f': {why}'}")
    return lines


def _milliseconds(found: Percentiles | None) -> str | None:
    return _three(found, 1000, ".0f", " ms")


def _three(found: Percentiles | None, factor: float, form: str, unit: str) -> str | None:
    if found is None:
        return None
    return "/".join(format(value * factor, form) for value in (found.p50, found.p95, found.p99)) + unit
