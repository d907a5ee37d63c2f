"""Loading an encoder by mlx-vlm, piece by piece, on the thread that will use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.model_folder import ModelFolder, open_folder
from protocol.values import Task
from worker.engine.blas import prepare_blas
from worker.engine.encoder_files import is_matryoshka, longest_text, pooling_of, task_of
from worker.engine.output import EngineFacts, StopRequested
from worker.engine.weights import WeightLoader

if TYPE_CHECKING:
    from worker.engine.encoder import Encoder, TextRows


class EncoderWeights(WeightLoader):
    """Those of a model that makes vectors, or scores."""

    library = "mlx-vlm"

    def read(self) -> Any:
        from mlx_vlm.embedding_loader import load_embedding_model  # noqa: PLC0415 (OpenBLAS comes first)
        from mlx_vlm.reranker_loader import load_sequence_classification_model  # noqa: PLC0415

        path = self.folder.path
        if task_of(self.folder.config) is Task.RERANK:
            return load_sequence_classification_model(path, lazy=True)
        model = load_embedding_model(path, lazy=True)
        if (pooling := pooling_of(self.folder)) is not None:
            model.pooling_config = pooling
        return model


class LoadedEncoder(NamedTuple):
    """`encoder` is the engine thread's, `rows` anybody's."""

    encoder: Encoder
    rows: TextRows
    matryoshka: bool


class EncoderLoader:
    """Loads one model once. Progress may be read, and a stop requested, from any thread."""

    def __init__(self, path: Path, max_model_len: int | None) -> None:
        self._path = path
        self._max_model_len = max_model_len
        self._stop = threading.Event()
        self.progress: tuple[float, str] = (0.0, "not begun")
        self.result: LoadedEncoder | None = None

    def request_stop(self) -> None:
        self._stop.set()

    def inspect(self) -> tuple[int, EngineFacts]:
        """Bytes of the weights, and what is known before they are read. Raises `ValueError`."""
        folder = open_folder(self._path)
        size = sum(shard.size for shard in folder.weights)
        return size, self._facts(folder)

    def pieces(self) -> Iterator[None]:
        """One piece of the work with each `next`. Raises `StopRequested` between two, and `ValueError`."""
        self._note(0.0, "starting MLX")
        yield
        prepare_blas()
        folder = open_folder(self._path)
        self._note(0.1, "reading the tokenizer")
        yield
        tokenizer = _tokenizer(folder)
        weights = EncoderWeights(folder)
        weights.build()
        for share in weights.pieces():
            self._note(0.2 + 0.7 * share, "reading the weights")
            yield
        from worker.engine.encoder import Encoder, TextRows  # noqa: PLC0415 (OpenBLAS came first)

        self._note(0.95, "trying the model")
        padding = tokenizer.pad_token_id
        if padding is None:
            padding = int(folder.config.get("pad_token_id") or 0)
        rows = TextRows(tokenizer, folder.vocabulary or len(tokenizer), self._facts(folder).max_model_len)
        encoder = Encoder(weights.model, task_of(folder.config), padding)
        self.result = LoadedEncoder(encoder, rows, is_matryoshka(folder.config))

    def _facts(self, folder: ModelFolder) -> EngineFacts:
        longest = longest_text(folder, self._max_model_len)
        return EngineFacts(longest, folder.fingerprint(), task=task_of(folder.config))

    def _note(self, done: float, doing: str) -> None:
        self.progress = (done, doing)
        if self._stop.is_set():
            raise StopRequested(f"asked to stop while {doing}")


def _tokenizer(folder: ModelFolder) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 (only when chosen)

    try:
        return AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
    except Exception as error:  # whatever the tokenizer's library makes of a damaged file
        raise ValueError(
            f"the tokenizer in {folder.path} cannot be loaded: {error}; copy tokenizer.json and"
            " tokenizer_config.json again"
        ) from error
