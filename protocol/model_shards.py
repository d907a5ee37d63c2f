"""The weight files of a model folder, checked by their headers alone: no tensor is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.model_documents import read_json

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000
"""The format's own limit."""
_LFS = b"version https://git-lfs"
_BITS = {
    8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"),
    16: ("U16", "I16", "F16", "BF16"),
    32: ("U32", "I32", "F32"),
    64: ("U64", "I64", "F64", "C64"),
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
}
_BITS_OF = {name: bits for bits, names in _BITS.items() for name in names}


@dataclass(frozen=True)
class Shard:
    """One weight file whose header and length agree."""

    path: Path
    size: int
    digest: str
    """Of the header: names, types, shapes and places of all tensors."""
    tensors: Mapping[str, str]
    """What type its numbers have, by the name of the tensor."""


def open_shards(folder: Path) -> tuple[Shard, ...]:
    """The weight files that MLX will read. Raises `ValueError` that names the file at fault."""
    files = sorted(folder.glob("model*.safetensors"))
    index = _read_index(folder / INDEX)
    for name in sorted(set(index.values())):
        if Path(name).name != name:
            raise ValueError(
                f"{folder / INDEX} names a file outside of the folder, {name!r}; copy the whole model there"
            )
        if folder / name not in files:
            raise ValueError(
                f"{folder / INDEX} lacks {name}, which it names; copy the whole model to {folder}"
            )
    if not files:
        raise ValueError(f"{folder / INDEX} names no file; copy the whole model there")
    shards = tuple(open_shard(file) for file in files)
    _check_tensors(index, shards)
    return shards


def open_shard(path: Path) -> Shard:
    """Check one file. Raises `ValueError`."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if _LFS.startswith(start) and start:
                raise ValueError(
                    f"{path} is a pointer of Git LFS, not the weights; run: git lfs pull, in its folder"
                )
            length = int.from_bytes(start, "little")
            raw = file.read(length) if length <= min(_LONGEST_HEADER, size - 8) else b""
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}; {_CURE_READ}") from error
    try:
        header = json.loads(raw)
        end = _end_of({name: entry for name, entry in header.items() if name != "__metadata__"})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header cannot be read; copy the file again") from error
    if size != 8 + length + end:
        raise ValueError(
            f"{path} is damaged: it has {size} bytes and should have {8 + length + end}; copy the file again"
        )
    tensors = {name: entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    return Shard(path, size, hashlib.sha256(raw).hexdigest(), tensors)


_CURE_READ = "give its owner leave to read it: chmod u+r, or chown"


def _end_of(entries: dict[str, dict[str, Any]]) -> int:
    """Where the last tensor ends. Raises when they do not lie one behind the other, each of its size."""
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: entry["data_offsets"]):
        bits = _BITS_OF[entry["dtype"]]
        for dimension in entry["shape"]:
            if dimension < 0 or not isinstance(dimension, int):
                raise ValueError("no shape")
            bits *= dimension
        begin, stop = entry["data_offsets"]
        if begin != end or (stop - begin) * 8 != bits:
            raise ValueError("no place")
        end = int(stop)
    return end


def _read_index(path: Path) -> dict[str, str]:
    """Tensor to file; empty where there is no index."""
    if not path.exists():
        return {}
    names = read_json(path).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path} is damaged: it has no weight_map; copy the file again")
    return names


def _check_tensors(index: dict[str, str], shards: Iterable[Shard]) -> None:
    holders: dict[str, Shard] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor in holders:
                raise ValueError(
                    f"{shard.path} and {holders[tensor].path.name} both hold {tensor!r}: one of them is left"
                    " from another copy; remove it"
                )
            holders[tensor] = shard
    for tensor, name in index.items():
        holder = holders.get(tensor)
        if holder is None or holder.path.name != name:
            folder = next(iter(shards)).path.parent
            raise ValueError(
                f"{folder / name} is damaged: it lacks {tensor!r}, which {INDEX} names; copy the file again"
            )
