"""Chats with pictures over HTTP, against mlx-vlm's own server with the same model.

Each chat has a picture that was not seen before, and an answer of a set length; the model is that of the
tests, so small that what is around it counts. Both have one BLAS thread.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import sys
from pathlib import Path
from typing import Any

from measure import compare, machine
from servers import BENCHES, Cluster, processes, start_peer
from streams import ask_all, speed

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="+", default=[4])
    parser.add_argument("--tokens", type=int, default=48, help="of each answer, whatever the model says")
    parser.add_argument("--model", type=Path, default=None, help="its folder; default: a tiny one, made here")


def run(folder: Path, options: argparse.Namespace) -> None:
    from tests.mlx.tiny_vision import vision_folder  # noqa: PLC0415 (it is made with MLX)

    model = options.model or vision_folder(folder / "seeing")
    fresh = itertools.count()
    with processes() as owned:
        table = f'model = "{model}"\nengine = "vision"\nserved_name = "seeing"\nmax_num_seqs = 16'
        ours = Cluster(folder, table, owned, environ=ONE_THREAD)
        command = [
            sys.executable,
            "-P",
            str(BENCHES / "baselines" / "mlx_vlm_server.py"),
            "--model",
            str(model),
        ]
        _process, theirs = start_peer("mlx-vlm", command, ONE_THREAD, owned, folder)
        settings = {"max_tokens": options.tokens, "logit_bias": {str(_end(model)): -100}}

        def tokens_per_s(url: str, name: str, streams: int) -> float:
            asked = [turn(next(fresh)) for _ in range(streams)]
            answers = asyncio.run(ask_all(url, name, asked, [settings] * streams))
            if any(answer.tokens != options.tokens for answer in answers):
                raise SystemExit(f"{url} gave {[each.tokens for each in answers]} tokens")
            return speed(answers)

        print(machine())
        for streams in options.streams:
            compare(
                f"tokens per second of {streams} chats with pictures, ours / mlx-vlm's server",
                "tokens/s",
                options.pairs,
                lambda streams=streams: tokens_per_s(ours.url, "seeing", streams),
                lambda streams=streams: tokens_per_s(theirs, str(model), streams),
            )


def turn(number: int) -> list[Any]:
    """A question about a picture that no other number has."""
    from PIL import Image  # noqa: PLC0415

    data = io.BytesIO()
    Image.new("RGB", (112, 112), (number % 256, number // 256 % 256, 128)).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What do you see?"}]
    return [{"role": "user", "content": parts}]


def _end(model: Path) -> int:
    from protocol.model_documents import read_json  # noqa: PLC0415

    ends = read_json(model / "config.json")["eos_token_id"]
    return int(ends[0] if isinstance(ends, list) else ends)
