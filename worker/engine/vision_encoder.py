"""What a model's encoder makes of pictures, kept by the hash of their bytes. Engine thread only."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from worker.engine.vision_prompt import Inputs, Picture

_WORKABLE = frozenset({"inputs_embeds", "position_ids", "rope_deltas", "attention_mask"})
"""What an encoder may give. A model that needs more of it in each layer is not one of embeddings alone."""


@dataclass(frozen=True)
class Encoded:
    """What the encoder made of one picture."""

    features: mx.array
    """(tokens, width): the embeddings of its tokens."""
    steps: mx.array | None
    """(tokens, 4), int32: how far each is from where the picture begins, in three dimensions, and how far the
    position moves on behind it; None where positions are counted in one dimension."""

    @property
    def nbytes(self) -> int:
        return self.features.nbytes + (0 if self.steps is None else self.steps.nbytes)


class Encoder:
    """Owns what was made; what was used last stays, within bounds."""

    def __init__(self, model: Any, picture_token: int, max_bytes: int) -> None:
        """`picture_token` stands for each token of a picture in what is read. 0 bytes keep nothing."""
        self._model = model
        self.picture_token = picture_token
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Encoded] = OrderedDict()
        self._bytes = self._runs = self._hits = 0

    def has(self, key: bytes) -> bool:
        """Whether it is there now. From any thread."""
        return key in self._kept

    def encoded(self, picture: Picture) -> Encoded:
        """Raises what the model raises."""
        found = self._kept.get(picture.key)
        if found is not None:
            self._hits += 1
            self._kept.move_to_end(picture.key)
            return found
        self._runs += 1
        found = self.encode(picture.take_inputs())
        self._kept[picture.key] = found
        self._bytes += found.nbytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return found

    def encode(self, inputs: Inputs) -> Encoded:
        """What the model's encoder makes of a picture, computed. Raises what the model raises."""
        given = {name: mx.array(value) for name, value in inputs.items()}
        ids, pixels = given.pop("input_ids"), given.pop("pixel_values")
        mask = given.pop("attention_mask", None)
        made = self._model.get_input_embeddings(ids, pixels, mask=mask, **given).to_dict()
        more = sorted(name for name, value in made.items() if value is not None and name not in _WORKABLE)
        if more:
            raise ValueError(
                f"models of the type {self._model.config.model_type!r} look at pictures in ways"
                f" ({', '.join(more)}) that this version cannot batch; take another model that sees"
            )
        at = [i for i, token in enumerate(inputs["input_ids"][0].tolist()) if token == self.picture_token]
        positions = made.get("position_ids")
        steps = None if positions is None or positions.ndim < 3 else _steps(positions[:, 0], at)
        encoded = Encoded(made["inputs_embeds"][0, mx.array(at)], steps)
        mx.eval([each for each in (encoded.features, steps) if each is not None])
        return encoded

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0

    def stats(self) -> dict[str, int]:
        """A run is a picture that the encoder had to look at, a hit one that it did not."""
        return {
            "encoder_runs": self._runs,
            "encoder_hits": self._hits,
            "encoder_cache_entries": len(self._kept),
            "encoder_cache_bytes": self._bytes,
            "encoder_cache_max_bytes": self._max_bytes,
        }


def _steps(positions: mx.array, at: list[int]) -> mx.array:
    """Of the tokens `at`, from the positions (3, tokens) of all. Raises `ValueError` for those in parts."""
    begin, end = at[0], at[-1] + 1
    if end - begin != len(at):
        raise ValueError(
            "the tokens of its pictures are not one after the other, so that they have no places"
        )
    offsets = positions[:, begin:end] - positions[:, begin : begin + 1]
    move = mx.zeros((len(at), 1), mx.int32)
    move[-1] = (positions[:, end] - positions[:, begin]).max()
    return mx.concatenate([offsets.T.astype(mx.int32), move], axis=1)
