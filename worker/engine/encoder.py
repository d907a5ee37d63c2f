"""An encoder of mlx-vlm and its tokenizer: from texts to rows of tokens, from rows to vectors or scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from protocol.messages import Embed, Score
from protocol.values import Task
from worker.engine.limits import check_length
from worker.engine.output import PromptError

Numbers = npt.NDArray[np.float32]


class Row(NamedTuple):
    """The tokens of one text, or of a pair."""

    ids: list[int]
    kinds: list[int] | None = None
    """Of a pair: which of the two each token belongs to, where the model is told."""


@dataclass(frozen=True)
class TextRows:
    """Reads requests; not on the engine thread."""

    tokenizer: Any
    vocabulary: int
    most: int | None
    """Tokens of a text."""

    def embed(self, request: Embed) -> list[Row]:
        """Raises `PromptError`."""
        if request.token_ids:
            ids = [list(each[: request.most_tokens]) for each in request.token_ids]
            self._check_ids(ids)
        else:
            ids = self.tokenizer(list(request.inputs), **self._cut(request.most_tokens))["input_ids"]
        if request.most_tokens is None:
            for index, each in enumerate(ids):
                check_length(len(each), self.most, f"input[{index}]")
        return [Row(each[: self.most]) for each in ids]

    def score(self, request: Score) -> list[Row]:
        """Texts are cut to what the query leaves of the model's room. Raises `PromptError`."""
        queries = list(request.queries) * (len(request.texts) if len(request.queries) == 1 else 1)
        empty = [len(each) for each in self._pairs(queries, [""] * len(queries))["input_ids"]]
        for length in empty:
            check_length(length + 1, self.most, "query")  # a text has to have room beside it
        texts = self._shortened(list(request.texts), request.most_tokens)
        found = self._pairs(queries, texts, truncation="only_second", max_length=self.most)
        kinds = found.get("token_type_ids") or [None] * len(texts)
        return [Row(ids, of) for ids, of in zip(found["input_ids"], kinds, strict=True)]

    def _pairs(self, queries: list[str], texts: list[str], **options: Any) -> Any:
        if self.most is None:
            options = {}
        return self.tokenizer(queries, texts, return_attention_mask=False, **options)

    def _shortened(self, texts: list[str], most: int | None) -> list[str]:
        if most is None:
            return texts
        found = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        return [
            text if len(places) <= most else text[: places[most - 1][1]]
            for text, places in zip(texts, found["offset_mapping"], strict=True)
        ]

    def _cut(self, most: int | None) -> dict[str, Any]:
        if most is None:
            return {"return_attention_mask": False}
        length = most if self.most is None else min(most, self.most)
        return {"return_attention_mask": False, "truncation": True, "max_length": length}

    def _check_ids(self, texts: Sequence[list[int]]) -> None:
        """An id that the model does not have would be read from beyond its table."""
        for index, ids in enumerate(texts):
            if max(ids) >= self.vocabulary:
                raise PromptError(
                    f"input[{index}] has token ids beyond this model's, which are 0 to {self.vocabulary - 1}",
                    "tokens",
                    param=f"input[{index}]",
                )


class Encoder:
    """The network. Engine thread only."""

    def __init__(self, network: Any, task: Task, padding: int) -> None:
        """`padding`: the id of the padding token. Raises `ValueError` for what cannot be computed."""
        self._network = network
        self._task = task
        self._padding = padding
        try:
            word = int(padding == 0)
            self.dimensions = self.compute([Row([word, word]), Row([word])]).shape[-1]
        except NotImplementedError as error:
            raise ValueError(f"this model's vectors cannot be made here: {error}") from error

    def compute(self, rows: Sequence[Row]) -> Numbers:
        """A vector of length 1 for each row, or a score. Raises `RuntimeError` for what is no number."""
        longest = max(len(row.ids) for row in rows)
        ids = np.full((len(rows), longest), self._padding, dtype=np.int32)
        mask = np.zeros((len(rows), longest), dtype=np.int32)
        kinds = np.zeros((len(rows), longest), dtype=np.int32)
        for place, row in enumerate(rows):
            ids[place, : len(row.ids)] = row.ids
            mask[place, : len(row.ids)] = 1
            if row.kinds is not None:
                kinds[place, : len(row.kinds)] = row.kinds
        told = {} if rows[0].kinds is None else {"token_type_ids": mx.array(kinds)}
        out = self._network(mx.array(ids), attention_mask=mx.array(mask), **told)
        if self._task is Task.RERANK:
            found = mx.sigmoid(out.logits.astype(mx.float32))[:, :1]
        else:
            found = out.text_embeds.astype(mx.float32)
        numbers = np.array(found)
        if not np.isfinite(numbers).all():
            raise RuntimeError("the model gave what is no number")
        return numbers


def shortened(vectors: Numbers, dimensions: int | None) -> Numbers:
    """The first so many numbers of each, again of length 1."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    kept = vectors[:, :dimensions]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    return np.ascontiguousarray(kept / np.maximum(lengths, 1e-12), dtype=np.float32)
