"""64 texts of mixed lengths through the embeddings engine, against mlx-vlm at its best batch size."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

from measure import compare, machine

from protocol.messages import Embed
from worker.engine.base import run_blocking_startup_work
from worker.engine.blas import prepare_blas
from worker.engine.embeddings import EmbeddingsEngine

BATCHES = (1, 4, 8, 16, 32, 64)
_HIDDEN = 256


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, help="folder of an encoder; else one with random weights is made"
    )


def run(folder: Path, options: argparse.Namespace) -> None:
    prepare_blas()
    from baselines.bare_encoder import BareEncoder  # noqa: PLC0415 (OpenBLAS comes first)

    path = options.model or _random_model(folder / "model")
    rng = random.Random(1)
    texts = [" ".join(rng.choice("abcdefgh") for _ in range(int(4 * 60 ** rng.random()))) for _ in range(64)]
    print(machine())
    bare = BareEncoder(path)
    best = min(BATCHES, key=lambda batch: min(_timed(lambda: bare.embed(texts, batch)) for _ in range(3)))
    print(f"the bare library is fastest with {best} texts a batch")
    with asyncio.Runner() as runner:
        engine = runner.run(_started(path))
        request = Embed(request_id="r", inputs=tuple(texts), most_tokens=2**31)

        def ours() -> float:
            return 64 / _timed(lambda: runner.run(engine.embed(request, "r", lambda _tokens: None)))

        compare(
            "the engine / the bare library's best",
            "texts/s",
            options.pairs,
            ours,
            lambda: 64 / _timed(lambda: bare.embed(texts, best)),
        )
        runner.run(engine.stop())


async def _started(path: Path) -> EmbeddingsEngine:
    engine = EmbeddingsEngine(str(path), models=path.parent)
    await run_blocking_startup_work(engine.prepare_for_start)
    await engine.start()
    return engine


def _timed(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _random_model(target: Path) -> Path:
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.mlx.tiny_encoders import BERT, MEAN, encoder_folder  # noqa: PLC0415 (OpenBLAS came first)

    larger = {"hidden_size": _HIDDEN, "intermediate_size": 4 * _HIDDEN, "num_hidden_layers": 4}
    return encoder_folder(target, {**BERT, **larger, "max_position_embeddings": 512}, MEAN)
