"""How many tokens a model was made for, by its config.json, and how many of them are served. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "max_seq_length",
    "seq_length",
    "model_max_length",
)
_STRETCHING = ("linear", "dynamic")
"""Kinds of rope scaling that make the length so many times longer than it says."""
_YARN = ("yarn", "deepseek_yarn", "telechat3-yarn")
_STRETCHED_ALREADY = "gemma3"
"""Its length is meant with the scaling."""


def model_context(config: Mapping[str, Any]) -> int | None:
    """Tokens that a model was made for, rope scaling included; None where the configuration is silent.

    As vLLM derives it: the least of the lengths that are named, scaled where the kind of scaling is
    not counted in already. The language part of a model with several counts before the whole.
    """
    for part in (config.get("text_config"), config):
        if isinstance(part, Mapping) and (length := _length(part)) is not None:
            return length
    return None


def served_context(made_for: int | None, wanted: int | None) -> int | None:
    """The shorter of what the model was made for and what the configuration says."""
    known = [length for length in (made_for, wanted) if length is not None]
    return min(known, default=None)


def _length(part: Mapping[str, Any]) -> int | None:
    lengths = [value for key in _LENGTHS if (value := _count(part.get(key))) is not None]
    if not lengths:
        return None
    rope = part.get("rope_scaling") or part.get("rope_parameters")
    if not isinstance(rope, Mapping) or str(part.get("model_type")).startswith(_STRETCHED_ALREADY):
        return min(lengths)
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if not isinstance(factor, int | float) or factor <= 0:
        return min(lengths)
    if kind in _YARN:
        before = _count(rope.get("original_max_position_embeddings"))
        return int((min(lengths) if before is None else before) * factor)
    return int(min(lengths) * factor) if kind in _STRETCHING else min(lengths)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
