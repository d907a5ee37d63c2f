"""What the files of an encoder say of it: its task, its pooling, how long its texts may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.model_documents import read_json
from protocol.model_folder import ModelFolder
from protocol.values import Task

POOLINGS = ("cls", "mean", "max", "lasttoken")
_MATRYOSHKA = frozenset({"qwen3", "gemma3_text"})
"""Kinds of models whose families were trained so that the first numbers of a vector say the most."""
_COUNTED_FROM_PADDING = frozenset({"xlm-roberta", "xlm_roberta"})
"""Kinds that count positions from behind the padding token's id, and so have fewer than they say."""
_UNBOUNDED = 1_000_000


def task_of(config: Mapping[str, Any]) -> Task:
    """A classifier of pairs ranks; any other encoder makes vectors."""
    names = config.get("architectures") or ()
    ranks = any(str(name).endswith("ForSequenceClassification") for name in names)
    return Task.RERANK if ranks else Task.EMBED


def pooling_of(folder: ModelFolder) -> dict[str, Any] | None:
    """As sentence-transformers wrote it beside the model; None: its kind's own. Raises `ValueError`."""
    path = folder.path / "1_Pooling" / "config.json"
    if not path.is_file():
        return None
    pooling = read_json(path)
    if not isinstance(pooling, dict):
        raise ValueError(f"{path} is no JSON object; copy the model again")
    return pooling


def is_matryoshka(config: Mapping[str, Any]) -> bool:
    """Whether its vectors may be cut."""
    said = config.get("is_matryoshka", config.get("matryoshka_dimensions"))
    return bool(said) if said is not None else config.get("model_type") in _MATRYOSHKA


def longest_text(folder: ModelFolder, wanted: int | None) -> int | None:
    """Tokens of a text at most, the special ones included: the least of what its files and `wanted` say."""
    config = folder.config
    positions = folder.context
    if positions is not None and config.get("model_type") in _COUNTED_FROM_PADDING:
        positions -= int(config.get("pad_token_id") or 0) + 1
    said = (
        _count(folder, "sentence_bert_config.json", "max_seq_length"),
        _count(folder, "tokenizer_config.json", "model_max_length"),
    )
    known = [length for length in (positions, wanted, *said) if length is not None]
    return min(known, default=None)


def _count(folder: ModelFolder, name: str, key: str) -> int | None:
    path = folder.path / name
    found = read_json(path) if path.is_file() else None
    value = found.get(key) if isinstance(found, dict) else None
    return value if isinstance(value, int) and 0 < value < _UNBOUNDED else None
