"""Computed prompt beginnings, kept for requests that begin alike. Lives on the engine thread."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import LRUPromptCache, can_trim_prompt_cache

Cache = list[Any]
"""One entry per layer, in mlx-lm's types."""

_KEY = "model"
_ENTRIES = 256
_LEAST = 16
"""Shorter common beginnings are not worth the copy."""


class PrefixCache:
    """Owns copies of key-value caches, bounded in bytes. What it hands out is a copy again."""

    def __init__(self, max_bytes: int) -> None:
        """0 bytes switch it off."""
        self._max_bytes = max_bytes
        self._cache = LRUPromptCache(max_size=_ENTRIES, max_bytes=max_bytes)
        self._hits = 0
        self._reused = 0
        self._lookups = 0

    def fetch(self, ids: list[int]) -> tuple[Cache | None, int]:
        """A cache of the longest known beginning of `ids`, never of all, and its number of tokens."""
        if not self._max_bytes or len(ids) <= _LEAST:
            return None, 0
        self._lookups += 1
        cache, rest = self._cache.fetch_nearest_cache(_KEY, ids[:-1])
        known = len(ids) - 1 - len(rest)
        if cache is None or known < _LEAST:
            return None, 0
        self._hits += 1
        self._reused += known
        return cache, known

    def store(self, ids: list[int], cache: Cache) -> None:
        """Keep the cache of exactly these ids, where caches of its kind can be cut back."""
        if not self._max_bytes or not can_trim_prompt_cache(cache):
            return
        if any(layer.size() != len(ids) for layer in cache):
            return
        mx.eval([layer.state for layer in cache])  # otherwise it would keep the whole batch alive
        self._cache.insert_cache(_KEY, list(ids), cache)

    def clear(self) -> None:
        self._cache.trim_to(n_sequences=0)

    def stats(self) -> dict[str, int]:
        return {
            "entries": len(self._cache),
            "bytes": int(self._cache.nbytes),
            "max_bytes": self._max_bytes,
            "lookups": self._lookups,
            "hits": self._hits,
            "reused_tokens": self._reused,
        }
