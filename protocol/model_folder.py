"""A model folder: what its files tell, and whether they are whole. No weight is read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.model_context import model_context
from protocol.model_documents import DESCRIBING, TEMPLATES, check_leftovers, check_tokenizer, read_config
from protocol.model_shards import Shard, open_shards
from protocol.models import no_model


@dataclass(frozen=True)
class ModelFolder:
    """A folder whose files were found whole."""

    path: Path
    config: dict[str, Any]
    weights: tuple[Shard, ...]

    @property
    def context(self) -> int | None:
        """How many tokens the model was made for."""
        return model_context(self.config)

    @property
    def vocabulary(self) -> int | None:
        """How many token ids the model has; an id beyond would end the process."""
        for place in (self.config, self.config.get("text_config") or {}):
            if isinstance(size := place.get("vocab_size"), int):
                return size
        return None

    def fingerprint(self) -> str:
        """Alike where model, tokenizer and template are; of the weights by their headers and sizes."""
        digest = hashlib.sha256()
        for name in (*DESCRIBING, *TEMPLATES, "tokenizer.model"):
            path = self.path / name
            if path.is_file():
                digest.update(f"{name}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
        for shard in self.weights:
            digest.update(f"{shard.path.name}\0{shard.size}\0{shard.digest}\0".encode())
        return digest.hexdigest()

    def stamp(self) -> str:
        """Another one after any change of the weights, some of which the fingerprint does not see."""
        stamps = [f"{shard.path.resolve()}\0{shard.path.stat().st_mtime_ns}" for shard in self.weights]
        return hashlib.sha256("\0".join(stamps).encode()).hexdigest()


def open_folder(path: Path) -> ModelFolder:
    """The model folder at `path`. Raises `ValueError` that names what is missing or damaged."""
    if why := no_model(path):
        raise ValueError(why)
    check_leftovers(path)
    config = read_config(path)
    weights = open_shards(path)
    check_tokenizer(path)
    return ModelFolder(path, config, weights)
