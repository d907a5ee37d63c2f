"""What the key-value cache of one sequence takes, by the model's config.json. Pure.

As mlx-lm keeps it: keys and values of every token for a layer that sees all of them, those of the last
tokens for one with a sliding window, something of constant size for a recurrent one. Where a
configuration says less than its network does, the larger is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_STEP = 256
"""Tokens by which mlx-lm lets a cache grow."""
_COMPRESSED = {
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "kimi_k2",
    "kimi_linear",
    "longcat_flash",
}
"""Kinds of which mlx-lm keeps the compressed keys and values (MLA); of others, those of all heads."""
_PATTERNS = {"gemma3_text": 6, "gemma3": 6, "cohere2": 4, "exaone4": 4}
"""Kinds that name no layer types: each so-many-th layer sees all, unless the configuration says otherwise."""
_RECURRENT = ("linear_attention", "conv", "mamba", "mamba2", "recurrent")


@dataclass(frozen=True)
class Quantization:
    """Of the cache, in mlx-lm's words."""

    bits: int
    group_size: int = 64

    def bytes_of(self, numbers: int, element: int) -> int:
        """Of a row of so many numbers: their bits, and a scale and a bias for each group."""
        return numbers * self.bits // 8 + 2 * element * (numbers // self.group_size)


@dataclass(frozen=True)
class Layers:
    """Layers that are kept alike."""

    count: int
    token_bytes: int
    """Of one token in one of them."""
    window: int | None = None
    """It keeps so many tokens at most."""
    words: str = ""
    """How `token_bytes` comes about."""

    def bytes_for(self, tokens: int) -> int:
        kept = -(-tokens // _STEP) * _STEP
        return self.count * self.token_bytes * (kept if self.window is None else min(kept, self.window))


@dataclass(frozen=True)
class KvShape:
    """Of one sequence's cache."""

    layers: tuple[Layers, ...]
    state_bytes: int = 0
    """Of its recurrent layers, however long it is."""

    def bytes_for(self, tokens: int) -> int:
        """So much is held for a sequence of so many tokens."""
        return self.state_bytes + sum(layers.bytes_for(tokens) for layers in self.layers)

    def longest_in(self, size: int, most: int) -> int:
        """The longest sequence, of at most so many tokens, that fits into so many bytes."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes_for(middle) <= size else (low, middle - 1)
        return low


def kv_shape(config: Mapping[str, Any], element: int, quantized: Quantization | None = None) -> KvShape:
    """`element`: bytes of one number. Raises `ValueError` when the configuration tells no sizes.

    A window's layers stay as they are when the others are quantized, as in mlx-lm.
    """
    config = {**config, **(config.get("text_config") or {})}
    counts = Counter(_kinds(config))
    full = _row(config, sees_all=True)
    windowed = _row(config, sees_all=False)
    size = (
        sum(full) * element
        if quantized is None
        else sum(quantized.bytes_of(numbers, element) for numbers in full)
    )
    found = []
    if counts["full"]:
        found.append(Layers(counts["full"], size, words=_words(full, element, quantized)))
    if counts["window"]:
        window = _number(config, "sliding_window")
        found.append(
            Layers(counts["window"], sum(windowed) * element, window, _words(windowed, element, None))
        )
    return KvShape(tuple(found), counts["state"] * _state(config, element))


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """Of each layer that keeps something: full, window or state."""
    count = _number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == count:
        own = types[: count - int(config.get("num_kv_shared_layers") or 0)]
        return [_kind(str(name), config) for name in own]
    if isinstance(pattern := config.get("hybrid_override_pattern"), str):
        return [{"*": "full", "M": "state"}[mark] for mark in pattern if mark in "*M"]
    if isinstance(attending := config.get("full_attn_idxs"), list):
        return ["full" if i in attending else "state" for i in range(count)]
    if isinstance(interval := config.get("full_attention_interval"), int):
        return ["state" if (i + 1) % interval else "full" for i in range(count)]
    default = _PATTERNS.get(str(config.get("model_type")))
    every = config.get("sliding_window_pattern") or default
    if default and isinstance(every, int) and config.get("sliding_window"):
        return ["window" if (i + 1) % every else "full" for i in range(count)]
    return ["full"] * count


def _kind(layer_type: str, config: Mapping[str, Any]) -> str:
    if layer_type in _RECURRENT:
        return "state"
    return "window" if layer_type == "sliding_attention" and config.get("sliding_window") else "full"


def _row(config: Mapping[str, Any], *, sees_all: bool) -> tuple[int, int]:
    """Numbers that a layer keeps of a token: of its keys, of its values."""
    heads = _number(config, "num_attention_heads", "n_head", "n_heads")
    rank, rope = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
    if rank and rope:
        if config.get("model_type") in _COMPRESSED:
            return int(rank), int(rope)
        return heads * (int(config.get("qk_nope_head_dim") or 0) + int(rope)), heads * _number(
            config, "v_head_dim"
        )
    kept = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or _number(config, "hidden_size", "n_embd", "d_model") // heads)
    if sees_all:  # where those that see everything have a form of their own
        size = int(config.get("global_head_dim") or size)
        if config.get("attention_k_eq_v"):
            kept = int(config.get("num_global_key_value_heads") or kept)
    return kept * size, kept * size


def _state(config: Mapping[str, Any], element: int) -> int:
    """Of one recurrent layer, where its configuration tells: a matrix a head, and the last inputs."""
    heads, keys, values = (
        int(config.get(f"linear_{name}") or 0)
        for name in ("num_value_heads", "key_head_dim", "value_head_dim")
    )
    last = int(config.get("linear_conv_kernel_dim") or config.get("conv_L_cache") or 1) - 1
    width = 2 * int(config.get("linear_num_key_heads") or 0) * keys + heads * values
    return 4 * heads * keys * values + last * (width or int(config.get("hidden_size") or 0)) * element


def _words(row: tuple[int, int], element: int, quantized: Quantization | None) -> str:
    kind = f"{element} B" if quantized is None else f"{quantized.bits} bits"
    return f"({row[0]} + {row[1]}) numbers of {kind}"


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if isinstance(value := config.get(name), int) and value > 0:
            return value
    raise ValueError(f"config.json tells no {names[0]}, by which its memory could be calculated")
