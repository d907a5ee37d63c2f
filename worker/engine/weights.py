"""A model folder: what its files tell, whether they are whole, and reading its weights in pieces."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PIECE_BYTES = 64 << 20
_DESCRIBING = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer.model")


@dataclass(frozen=True)
class ModelFolder:
    """A folder whose files were found whole."""

    path: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]

    @property
    def context(self) -> int | None:
        """How many tokens the model was made for."""
        return self._number("max_position_embeddings")

    @property
    def vocabulary(self) -> int | None:
        """How many token ids the model has; an id beyond would end the process."""
        return self._number("vocab_size")

    def _number(self, key: str) -> int | None:
        for place in (self.config, self.config.get("text_config") or {}):
            if isinstance(place.get(key), int):
                return int(place[key])
        return None

    def fingerprint(self) -> str:
        """Alike where model, tokenizer and template are: what they say, and the sizes of the weights."""
        digest = hashlib.sha256()
        for name in (*_DESCRIBING, *_TEMPLATES):
            path = self.path / name
            if path.is_file():
                digest.update(f"{name}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
        for path in self.weights:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        return digest.hexdigest()


def open_folder(path: Path) -> ModelFolder:
    """The model folder at `path`. Raises `ValueError` that names what is missing or damaged."""
    if not path.is_dir():
        raise ValueError(f"there is no model folder at {path}; give the path of a folder in MLX format")
    config = read_json(path / "config.json")
    weights = tuple(sorted(path.glob("model*.safetensors")))
    if not weights:
        raise ValueError(f"{path} holds no model*.safetensors; copy the whole model there")
    for file in weights:
        _check_safetensors(file)
    _check_index(path, weights)
    return ModelFolder(path, config, weights)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ValueError` that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing; copy the whole model there") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}; copy the file again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object; copy the file again")
    return value


def _check_safetensors(path: Path) -> None:
    """A file that was cut short would fail in the middle of loading, or later."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < size else None
    except (OSError, ValueError, MemoryError) as error:
        raise ValueError(f"{path} is damaged: its header cannot be read; copy the file again") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is damaged: its header cannot be read; copy the file again")
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        raise ValueError(
            f"{path} is damaged: it has {size} bytes and should have {expected}; copy the file again"
        )


def _check_index(path: Path, weights: tuple[Path, ...]) -> None:
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return
    named = set((read_json(index).get("weight_map") or {}).values())
    missing = sorted(named - {file.name for file in weights})
    if missing:
        raise ValueError(
            f"{path} lacks {', '.join(missing)}, which its index names; copy the whole model there"
        )


class WeightLoader:
    """Reads the weights of a folder, on the thread that will use the model."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        self.model: Any = None

    def pieces(self) -> Iterator[float]:
        """Read some 64 MB with each `next`; how much is read so far (0 to 1).

        Raises `ValueError` for a model that does not fit its configuration or is of an unknown kind.
        """
        import mlx.core as mx  # noqa: PLC0415 (OpenBLAS comes first)
        from mlx.utils import tree_flatten  # noqa: PLC0415
        from mlx_lm.utils import load_model  # noqa: PLC0415

        try:
            self.model, _config = load_model(self._folder.path, lazy=True)
        except (ValueError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"the model in {self._folder.path} cannot be loaded: {error}") from error
        arrays: list[Any] = [array for _name, array in tree_flatten(self.model.parameters())]
        total = sum(array.nbytes for array in arrays)
        done = 0
        yield 0.0
        for piece in _pieces(arrays):
            mx.eval(piece)
            done += sum(array.nbytes for array in piece)
            yield done / total


def _pieces(arrays: list[Any]) -> Iterator[list[Any]]:
    piece: list[Any] = []
    size = 0
    for array in arrays:
        piece.append(array)
        size += array.nbytes
        if size >= _PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
