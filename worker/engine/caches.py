"""Key-value caches of single sequences: made, quantized, cut back. Lives on the engine thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import KVCache, RotatingKVCache, can_trim_prompt_cache, make_prompt_cache

from worker.engine.prefix_state import Cache

_KEPT = 4
"""Tokens at the beginning that a bounded cache never forgets, as in mlx-lm."""


@dataclass(frozen=True)
class CacheOptions:
    """How caches are kept, in mlx-lm's words."""

    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 0
    max_kv_size: int | None = None


class Caches:
    """Makes and treats the caches of a model, and of its draft where there is one."""

    def __init__(self, networks: Sequence[Any], options: CacheOptions) -> None:
        """Raises `ValueError` when the options, or a draft, cannot be had with these models."""
        self._networks = networks
        self.options = options
        for network in networks:
            if len(networks) > 1:
                self._check_cutting(network)
            if options.kv_bits is not None:
                self._check_quantized(network)

    def new(self) -> list[Cache]:
        """An empty one for each model."""
        caches = [self._make(network) for network in self._networks]
        for cache in caches:
            self.quantize(cache)
        return caches

    def split(self, joined: Cache) -> list[Cache]:
        """One for each model, of one that holds them all in a row."""
        first = len(self._make(self._networks[0]))
        return [joined[:first], joined[first:]][: len(self._networks)]

    def quantize(self, cache: Cache) -> None:
        """What of it is long enough, in place, where that is asked for."""
        options = self.options
        maybe_quantize_kv_cache(cache, options.quantized_kv_start, options.kv_group_size, options.kv_bits)

    def _make(self, network: Any) -> Cache:
        cache: Cache = make_prompt_cache(network)
        size = self.options.max_kv_size
        if size is None:
            return cache
        return [RotatingKVCache(size, _KEPT) if type(layer) is KVCache else layer for layer in cache]

    def _check_cutting(self, network: Any) -> None:
        """What was proposed in vain is cut off again; mlx-lm would leave it there without a word."""
        cache = self._make(network)
        slides = any(isinstance(layer, RotatingKVCache) for layer in cache)
        if slides or not can_trim_prompt_cache(cache) or len(cache) != len(network.layers):
            kinds = ", ".join(sorted({type(layer).__name__ for layer in cache}))
            raise ValueError(
                f"draft_model needs caches that can be cut back at any length; a {network.model_type} model"
                f" has others ({kinds}); remove draft_model"
            )

    def _check_quantized(self, network: Any) -> None:
        options = self.options
        try:
            cache = self._make(network)
            for _ in range(2):
                maybe_quantize_kv_cache(cache, 0, options.kv_group_size, options.kv_bits)
                network(mx.array([[0]]), cache=cache)
                mx.eval([layer.state for layer in cache])
        except Exception as error:  # whatever its attention, or the kernels, have against it
            raise ValueError(
                f"the cache of a {network.model_type} model cannot be quantized with kv_bits ="
                f" {options.kv_bits} and kv_group_size = {options.kv_group_size}:"
                f" {type(error).__name__}: {error}; choose others, or remove kv_bits"
            ) from error


def even_out(cache: Cache) -> int:
    """Cut all layers to the length of the shortest, and tell it."""
    length: int = min(layer.size() for layer in cache)
    for layer in cache:
        layer.trim(layer.size() - length)
    return length
