"""The state of a model after some tokens, as pieces that can be kept: cut off, joined, copied. Engine thread.

A piece is a list of mlx-lm's caches, so that mlx-lm can write and read it. Plain key-value caches are
cut into blocks; layers of one shape are stacked in one array, as Metal bounds the number of buffers
(499,000) and a block would else take two for each layer. Anything else is kept whole.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache, RotatingKVCache, trim_prompt_cache

Cache = list[Any]
"""One entry per layer, in mlx-lm's types."""

_CUTTABLE = (KVCache, RotatingKVCache)
"""The types whose `is_trimmable` is to be believed: a chunked cache has lost its beginning and says yes."""


@dataclass(frozen=True)
class Piece:
    """A block of every layer, or the whole state."""

    caches: Cache
    layout: tuple[int, ...] = ()
    """For each layer the entry of `caches` that it is stacked in; empty for a whole state."""

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)


def evaluate(pieces: Iterable[Piece]) -> None:
    """Compute them now: what is lazy would keep the whole batch alive, and is no other thread's."""
    mx.eval([cache.state for piece in pieces for cache in piece.caches])


def in_blocks(cache: Cache) -> bool:
    """Whether every layer's cache can be cut anywhere, and joined."""
    return all(type(layer) is KVCache for layer in cache)


def can_cut(cache: Cache) -> bool:
    """Whether a beginning can be cut out of a whole state."""
    return all(type(layer) in _CUTTABLE and layer.is_trimmable() for layer in cache)


def covers(cache: Cache, tokens: int) -> bool:
    """Whether the state is that after so many tokens, as far as its layers tell."""
    layers = [part for layer in cache for part in getattr(layer, "caches", [layer])]
    return all(getattr(part, "offset", tokens) == tokens for part in layers)


def block_of(cache: Cache, start: int, end: int) -> Piece:
    """The tokens `start` to `end` of a state of plain key-value caches, as a lazy copy."""
    shapes: dict[object, list[int]] = {}
    for number, layer in enumerate(cache):
        shape = (*layer.keys.shape[:2], layer.keys.shape[3], layer.values.shape[3], layer.keys.dtype)
        shapes.setdefault(shape, []).append(number)
    layout = [0] * len(cache)
    stacks: Cache = []
    for group in shapes.values():
        keys = mx.stack([cache[number].keys[:, :, start:end] for number in group])
        values = mx.stack([cache[number].values[:, :, start:end] for number in group])
        for number in group:
            layout[number] = len(stacks)
        stacks.append(KVCache.from_state((keys, values, end - start)))
    return Piece(stacks, tuple(layout))


def joined(blocks: Sequence[Piece], tokens: int) -> Cache:
    """A state of the first `tokens` tokens of consecutive blocks, in arrays of its own."""
    stacks = []
    for group in zip(*(block.caches for block in blocks), strict=True):
        keys = mx.concatenate([stack.keys for stack in group], axis=3)[:, :, :, :tokens]
        values = mx.concatenate([stack.values for stack in group], axis=3)[:, :, :, :tokens]
        stacks.append((iter(keys), iter(values)))
    return [
        KVCache.from_state((next(stacks[place][0]), next(stacks[place][1]), tokens))
        for place in blocks[0].layout
    ]


def whole_of(cache: Cache) -> Piece:
    """A whole state, as a lazy copy without what a sliding window no longer needs."""
    return Piece([_compact(layer) for layer in cache])


def restored(piece: Piece, surplus: int) -> Cache:
    """A whole state of its own again, without its last `surplus` tokens; these only where `can_cut`."""
    cache = [_again(layer) for layer in piece.caches]
    if surplus:
        trim_prompt_cache(cache, surplus)
        # Only the offsets were changed: what reads whole arrays would see the tokens cut off.
        cache = whole_of(cache).caches
    return cache


def _compact(layer: Any) -> Any:
    # A window that keeps the first tokens would come out of a batch without them.
    batched = hasattr(layer, "merge") and not getattr(layer, "keep", 0)
    return layer.merge([layer]).extract(0) if batched else _again(layer)


def _again(layer: Any) -> Any:
    return type(layer).from_state(tree_map(copy.copy, layer.state))
