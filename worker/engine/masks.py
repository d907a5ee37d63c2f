"""Logits of rows that follow a grammar: what cannot come next is ruled out."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from worker.engine.sequence import Guide


def masked(logits: mx.array, guides: Sequence[Guide | None]) -> mx.array:
    """The logits (n, vocabulary) of rows, of which those with a guide can only be what it allows.

    Raises what the guides raise.
    """
    rows = [row for row, guide in enumerate(guides) if guide is not None]
    if not rows:
        return logits
    words = np.stack([guide.allowed() for guide in guides if guide is not None])
    bits = (mx.array(words)[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    allowed = bits.reshape(len(rows), -1)[:, : logits.shape[-1]].astype(mx.bool_)
    known = allowed.shape[-1]
    place = mx.array(rows)
    part = mx.where(allowed, logits[place, :known], -mx.inf)
    if known < logits.shape[-1]:
        rest = mx.full((len(rows), logits.shape[-1] - known), -mx.inf)
        part = mx.concatenate([part, rest], axis=-1)
    if len(rows) == len(guides):
        return part
    logits[place] = part
    return logits
