"""The speed of the other requests in a batch while half of its rows follow a schema, as a share of without.

In one process, without clients, from the last row's first token on: the free rows' tokens a second. Their
own work is the same in both; the other half draws at temperature 1, with and without a grammar.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from bench_sampling import load
from measure import compare, machine

from worker.engine.loading import LoadedModel
from worker.engine.sequence import Guide, Sequence
from worker.engine.settings import SamplingSettings
from worker.engine.shape import Form, Shape
from worker.parsers.base import Syntax
from worker.parsers.constrained import constrained

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        "place": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[A-Z][a-z]{2,12}$"}]},
    },
    "required": ["name", "age", "tags", "place"],
    "additionalProperties": False,
}
ENDLESS = {"type": "array", "items": PERSON, "minItems": 1000}
GREEDY, DRAWN = SamplingSettings(temperature=0.0), SamplingSettings(seed=7)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")


def run(_folder: Path, options: argparse.Namespace) -> None:
    model = load()
    print(machine())

    def guide() -> Guide:
        return model.grammars.guide(Shape(Form("json", ENDLESS)), constrained(Syntax(), calls=False))

    for streams in options.streams:
        compare(
            f"the free rows' speed at {streams} streams, half of them with a schema / without",
            "tokens/s",
            options.pairs,
            lambda streams=streams: speed(model, streams, options.tokens, guide),
            lambda streams=streams: speed(model, streams, options.tokens, lambda: None),
        )


def speed(model: LoadedModel, streams: int, tokens: int, guide: Callable[[], Guide | None]) -> float:
    from worker.engine.batch import Batch  # noqa: PLC0415 (OpenBLAS came first)
    from worker.engine.batch_sampler import BatchSampler  # noqa: PLC0415
    from worker.engine.prefix_cache import PrefixCache  # noqa: PLC0415

    batch = Batch(BatchSampler(model.network), streams, PrefixCache(0))
    sequences = [
        Sequence(
            str(i),
            [100 + 7 * i + k for k in range(20)],
            4 * tokens,
            DRAWN if i % 2 else GREEDY,
            frozenset(),
            lambda _event: None,
            guide=guide() if i % 2 else None,
        )
        for i in range(streams)
    ]
    for sequence in sequences:
        batch.add(sequence)
    while not all(sequence.emitted for sequence in sequences):
        batch.step()
    free = sequences[::2]
    began, before = time.perf_counter(), sum(len(sequence.emitted) for sequence in free)
    for _ in range(tokens):
        batch.step()
    passed = time.perf_counter() - began
    if batch.running < streams:
        raise RuntimeError("a row ended before its time")
    return (sum(len(sequence.emitted) for sequence in free) - before) / passed
