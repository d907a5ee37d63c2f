"""Making a model of its folder, and reading its weights in pieces."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

from protocol.model_folder import ModelFolder

_PIECE_BYTES = 64 << 20


class WeightLoader:
    """Reads the weights of a folder, on the thread that will use the model."""

    library = "mlx-lm"
    """What knows the kinds of models."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder
        self.model: Any = None

    def build(self) -> None:
        """Make the network; no weight is read yet. Raises `ValueError` for a model that cannot be.

        That is one of an unknown kind, or one that does not fit its configuration.
        """
        config = self.folder.path / "config.json"
        if (program := self.folder.config.get("model_file")) is not None:
            raise ValueError(
                f"{config} asks for a program of its own ({program!r}), which is not run;"
                f" take a model that {self.library} knows"
            )
        try:
            self.model = self.read()
        except Exception as error:  # nothing is read yet: it is what the files say that does not fit
            if "not supported" in str(error):
                raise ValueError(
                    f"{config}: models of the type {self.folder.config['model_type']!r} are not known to"
                    f" {self.library} {importlib.metadata.version(self.library)}, which is installed; take"
                    " another model, or a newer version of Studiofleet"
                ) from error
            names = ", ".join(shard.path.name for shard in self.folder.weights[:3])
            raise ValueError(
                f"{config} and the weights ({names}) do not fit together:"
                f" {type(error).__name__}: {_short(error)}; copy the whole model again"
            ) from error

    def read(self) -> Any:
        """The network, without weights."""
        from mlx_lm.utils import load_model  # noqa: PLC0415 (OpenBLAS comes first)

        model, _config = load_model(self.folder.path, lazy=True)
        return model

    def pieces(self) -> Iterator[float]:
        """Read some 64 MB of what was built with each `next`; how much is read so far (0 to 1)."""
        import mlx.core as mx  # noqa: PLC0415
        from mlx.utils import tree_flatten  # noqa: PLC0415

        arrays: list[Any] = [array for _name, array in tree_flatten(self.model.parameters())]
        total = sum(array.nbytes for array in arrays)
        done = 0
        yield 0.0
        for piece in _pieces(arrays):
            mx.eval(piece)
            done += sum(array.nbytes for array in piece)
            yield done / total


def _short(error: Exception) -> str:
    """A list of all tensors of a large model is no help."""
    words = " ".join(str(error).split())
    return words if len(words) <= 300 else words[:300] + " …"


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
