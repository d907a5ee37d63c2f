"""Gumbel noise as a function of key and token: the same for a token whichever others it stands among.

A hash of counters rather than MLX's generator, whose numbers depend on the shape that is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


def gumbel(keys: Sequence[int], tokens: mx.array) -> mx.array:
    """Noise for token ids of the shape (n, m) or (1, m), with one 64-bit key a row: float32 (n, m)."""
    halves = mx.array([[key >> 32, key & 0xFFFFFFFF] for key in keys], mx.uint32)
    mixed = _mix(tokens.astype(mx.uint32) * _word(0x9E3779B1) + halves[:, :1])
    mixed = _mix(mixed ^ halves[:, 1:])
    share = mx.maximum(mixed.astype(mx.float32), 0.5) * 2.0**-32
    # Large noise comes of small shares, which float32 tells apart finely, and their complements do not.
    # (log1p would do for all, at thrice the time.)
    rest = mx.maximum(1 - share, 2.0**-24)
    return -mx.log(mx.where(share < 1e-3, share * (1 + share / 2), -mx.log(rest)))


def _mix(word: mx.array) -> mx.array:
    """The finalizer of MurmurHash3: every bit of the input changes half of the output's."""
    word = (word ^ (word >> 16)) * _word(0x85EBCA6B)
    word = (word ^ (word >> 13)) * _word(0xC2B2AE35)
    return word ^ (word >> 16)


def _word(value: int) -> mx.array:
    return mx.array(value, mx.uint32)
