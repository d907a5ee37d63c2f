"""Whether the weight files of a model folder are whole, told by their headers: no tensor is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000
_LFS = b"version "


def damage(folder: Path) -> str:
    """What is wrong with the first file at fault; empty when all agree with their headers."""
    if not (folder / "config.json").is_file():
        return f"{folder} lacks config.json"
    try:
        names = _indexed(folder / INDEX)
    except (OSError, ValueError) as error:
        return f"{folder / INDEX} cannot be read: {error}"
    for name in sorted(names):
        if not (folder / name).is_file():
            return f"{folder} lacks {name}, which its index names"
    faults = (file_damage(file) for file in sorted(folder.glob("model*.safetensors")))
    return next((fault for fault in faults if fault), "")


def weight_bytes(folder: Path) -> int:
    """Of all weight files together."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())


def file_damage(file: Path) -> str:
    """What is wrong with one file; empty when its length is what its header says."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            start = opened.read(8)
            if start == _LFS:
                return f"{file} is a pointer of Git LFS, not the weights"
            length = int.from_bytes(start, "little")
            raw = opened.read(length) if length <= min(_LONGEST_HEADER, size - 8) else b""
        header: dict[str, Any] = json.loads(raw)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return f"{file} is damaged: its header cannot be read"
    return "" if size == whole else f"{file} is damaged: it has {size} bytes, and its header says {whole}"


def _indexed(index: Path) -> set[str]:
    if not index.exists():
        return set()
    document = json.loads(index.read_text(encoding="utf-8"))
    names = document.get("weight_map", {}).values() if isinstance(document, dict) else ()
    return {str(name) for name in names}
