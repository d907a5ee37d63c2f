"""A model that sees, as a network over ids: what mlx-lm's generator and the prefix cache can work with.

An id beyond the vocabulary is a token of a picture: its embedding is what the encoder made of it. Where the
model counts positions in three dimensions, those of a token follow from the tokens before it; how far they
have come is kept in one more entry of the cache, so that it is batched, cut, joined and stored with the
rest. Engine thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from worker.engine.vision_encoder import Encoded, Encoder
from worker.engine.vision_prompt import Inputs, Place


class VisionNetwork:
    """The model behind one call of ids and cache. It sees the pictures that it was shown."""

    def __init__(self, model: Any, vocabulary: int, encoder: Encoder, *, counts_in_three: bool) -> None:
        """`counts_in_three`: whether positions have three dimensions."""
        self._model = model
        self._vocabulary = vocabulary
        self.encoder = encoder
        self._shown: dict[int, tuple[Place, Encoded]] = {}
        self._counts_in_three = counts_in_three
        self._table: tuple[mx.array, mx.array, mx.array, mx.array | None] | None = None

    @property
    def layers(self) -> Any:
        return self._model.language_model.layers

    @property
    def model_type(self) -> str:
        return str(self._model.config.model_type)

    def parameters(self) -> Any:
        return self._model.parameters()

    def make_cache(self) -> list[Any]:
        """In mlx-lm's types. Raises `ValueError` for a model with others."""
        language = self._model.language_model
        own = language.make_cache() if hasattr(language, "make_cache") else [None] * len(self.layers)
        cache: list[Any] = [_plain(layer) for layer in own]
        return [*cache, KVCache()] if self._counts_in_three else cache

    def own_logits(self, inputs: Inputs) -> mx.array:
        """Those of the last token of a prompt with a picture, in mlx-vlm's own way."""
        from mlx_vlm.models.cache import make_prompt_cache  # noqa: PLC0415

        given = {name: mx.array(value) for name, value in inputs.items()}
        ids, pixels = given.pop("input_ids"), given.pop("pixel_values")
        mask = given.pop("attention_mask", None)
        made = self._model.get_input_embeddings(ids, pixels, mask=mask, **given).to_dict()
        given |= {name: value for name, value in made.items() if value is not None}
        cache = make_prompt_cache(self._model.language_model)
        logits: mx.array = self._model.language_model(ids, cache=cache, **given).logits[0, -1]
        return logits

    def show(self, place: Place, encoded: Encoded) -> None:
        """From now on its ids are known."""
        self._shown[place.first] = place, encoded
        self._table = None

    def keep(self, firsts: Iterable[int]) -> None:
        """Forget all pictures but those whose ids begin with one of these."""
        kept = {first: self._shown[first] for first in firsts if first in self._shown}
        if len(kept) < len(self._shown):
            self._shown, self._table = kept, None

    def __call__(self, ids: mx.array, cache: list[Any]) -> mx.array:
        options: dict[str, Any] = {}
        steps: mx.array | None = None
        if self._shown:
            rows, seen = self._rows(ids)
            features, known_steps = self._tables[2:]
            words = mx.where(seen, 0, ids)
            embedded = self._model.get_input_embeddings(words).inputs_embeds
            options["inputs_embeds"] = mx.where(
                seen[..., None], features[rows].astype(embedded.dtype), embedded
            )
            if known_steps is not None:
                plain = mx.array([0, 0, 0, 1], mx.int32)
                steps = mx.where(seen[..., None], known_steps[rows], plain)
            ids = words
        if self._counts_in_three:
            options["position_ids"] = _positions(cache[-1], ids.shape, steps)
            cache = cache[:-1]
        logits: mx.array = self._model.language_model(ids, cache=cache, **options).logits
        return logits

    @property
    def _tables(self) -> tuple[mx.array, mx.array, mx.array, mx.array | None]:
        """First numbers, where their rows begin, features and steps of all that is shown."""
        if self._table is None:
            shown = [self._shown[first] for first in sorted(self._shown)]
            begins, total = [], 0
            for place, _encoded in shown:
                begins.append(total)
                total += place.tokens
            steps = [encoded.steps for _place, encoded in shown if encoded.steps is not None]
            self._table = (
                mx.array([place.first for place, _encoded in shown], mx.int64),
                mx.array(begins, mx.int64),
                mx.concatenate([encoded.features for _place, encoded in shown]),
                mx.concatenate(steps) if steps else None,
            )
        return self._table

    def _rows(self, ids: mx.array) -> tuple[mx.array, mx.array]:
        """For each id its row in the tables, and whether it is a picture's at all."""
        firsts, begins = self._tables[:2]
        ids = ids.astype(mx.int64)
        seen = ids >= self._vocabulary
        which = mx.maximum((ids[..., None] >= firsts).astype(mx.int32).sum(axis=-1) - 1, 0)
        rows = begins[which] + ids - firsts[which]
        return mx.where(seen, rows, 0), seen


def _positions(count: Any, shape: tuple[int, ...], steps: mx.array | None) -> mx.array:
    """(3, rows, tokens). `count` is the entry of the cache that keeps the position behind each token."""
    rows, tokens = shape
    moves = mx.ones((rows, tokens), mx.int32) if steps is None else steps[..., 3]
    begin = mx.zeros((rows, 1), mx.int32)
    if count.size():
        begin = count.state[0][:, 0, count.size() - 1].astype(mx.int32)
    behind = begin + mx.cumsum(moves, axis=1)
    count.update_and_fetch(*([behind.astype(mx.float32)[:, None, :, None]] * 2))
    positions = mx.broadcast_to((behind - moves)[None], (3, rows, tokens))
    return positions if steps is None else positions + mx.moveaxis(steps[..., :3], -1, 0)


def _plain(layer: Any) -> Any:
    """The cache of one layer in mlx-lm's own type. Raises `ValueError` where it has none."""
    match type(layer).__name__:
        case "NoneType" | "KVCache":
            return KVCache()
        case "RotatingKVCache":
            return RotatingKVCache(max_size=layer.max_size, keep=layer.keep)
        case name:
            raise ValueError(f"this version cannot batch models with a {name}; take another model that sees")
