"""Texts through mlx-vlm's encoder and nothing else, sorted by length, so many a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm.embedding_loader import load_embedding_model
from mlx_vlm.models.pooling import read_pooling_config
from transformers import AutoTokenizer


class BareEncoder:
    def __init__(self, path: Path) -> None:
        self._model = load_embedding_model(path)
        if (pooling := read_pooling_config(path)) is not None:
            self._model.pooling_config = pooling
        self._tokenizer: Any = AutoTokenizer.from_pretrained(path)

    def embed(self, texts: list[str], batch: int) -> list[Any]:
        ordered = sorted(texts, key=len)
        found = []
        for at in range(0, len(ordered), batch):
            inputs = self._tokenizer(ordered[at : at + batch], padding=True, return_tensors="np")
            vectors = self._model(**{name: mx.array(inputs[name]) for name in inputs}).text_embeds
            mx.eval(vectors)
            found.append(vectors)
        return found
