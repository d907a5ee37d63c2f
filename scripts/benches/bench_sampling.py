"""CPU time a token of a batch by the settings of its rows, as a share of one whose rows are all greedy.

In one process, without clients, from the last row's first token on. CPU time, since the settings cost
milliseconds of steps that take a tenth of a second, and machines are shared.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Sequence as Several
from pathlib import Path
from typing import Any

from measure import compare, machine

from protocol.addresses import models_folder
from worker.engine.loading import LoadedModel, Loader
from worker.engine.sequence import Sequence
from worker.engine.settings import SamplingSettings

GREEDY = (SamplingSettings(temperature=0.0),)
KINDS: dict[str, Several[SamplingSettings]] = {
    "temperature": (SamplingSettings(),),
    "top_p": (SamplingSettings(top_p=0.95),),
    "penalties": (SamplingSettings(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5),),
    "logprobs": (SamplingSettings(temperature=0.0, logprobs=5),),
    "mixed": (
        SamplingSettings(temperature=0.0),
        SamplingSettings(temperature=0.7),
        SamplingSettings(top_p=0.9),
        SamplingSettings(top_k=40),
        SamplingSettings(min_p=0.05, temperature=1.3),
        SamplingSettings(top_p=0.95, frequency_penalty=0.5),
        SamplingSettings(temperature=0.8, repetition_penalty=1.1),
        SamplingSettings(temperature=0.0, logprobs=5),
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))


def run(_folder: Path, options: argparse.Namespace) -> None:
    network = load().network
    print(machine())
    for streams, kind in itertools.product(options.streams, options.kinds):
        compare(
            f"CPU time a token at {streams} streams, {kind} / greedy",
            "ms",
            options.pairs,
            lambda streams=streams, kind=kind: cost(network, KINDS[kind], streams, options.tokens),
            lambda streams=streams: cost(network, GREEDY, streams, options.tokens),
        )


def cost(network: Any, kinds: Several[SamplingSettings], streams: int, tokens: int) -> float:
    from worker.engine.batch import Batch  # noqa: PLC0415 (OpenBLAS came first)
    from worker.engine.batch_sampler import BatchSampler  # noqa: PLC0415
    from worker.engine.prefix_cache import PrefixCache  # noqa: PLC0415

    batch = Batch(BatchSampler(network), streams, PrefixCache(0))
    sequences = [
        Sequence(
            str(i), [100 + 7 * i + k for k in range(20)], 4 * tokens, kinds[i % len(kinds)], frozenset(), _no
        )
        for i in range(streams)
    ]
    for sequence in sequences:
        batch.add(sequence)
    while not all(sequence.emitted for sequence in sequences):
        batch.step()
    began, before = time.process_time(), sum(len(sequence.emitted) for sequence in sequences)
    for _ in range(tokens):
        batch.step()
    passed = time.process_time() - began
    made = sum(len(sequence.emitted) for sequence in sequences) - before
    batch.close()
    return passed / made * 1000


def _no(_event: object) -> None:
    """Nobody listens."""


def load() -> LoadedModel:
    loader = Loader(None, models_folder(os.environ), None)
    for _piece in loader.pieces():
        pass
    if loader.result is None:
        raise RuntimeError("the embedded model is not loaded")
    return loader.result
