"""GGUF of a Llama with a byte-level BPE tokenizer → MLX model folder.

Quantized matrices stay as they are (`dense=False`, lossless) or become float32 (`dense=True`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_GROUP_SIZE = 32
_CONTROL_TOKEN = 3
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path, *, dense: bool) -> None:
    """Write the model of `gguf` into the existing `folder`. Raises `ValueError` on another kind of model."""
    loaded: Any = mx.load(str(gguf), return_metadata=True)
    arrays, metadata = loaded
    _check(metadata)
    weights = {_rename(name): array for name, array in arrays.items()}
    _unpermute(weights, metadata)
    config = _config(metadata)
    if dense:
        weights = _dequantize(weights)
    else:
        config["quantization"] = config["quantization_config"] = _quantization(weights)
    weights = {name: _as_float32(weights[name]) for name in sorted(weights)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id")})
    _write_tokenizer(folder, metadata)


def _check(metadata: dict[str, Any]) -> None:
    expected = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }
    for key, value in expected.items():
        if metadata.get(key) != value:
            raise ValueError(
                f"the GGUF file has {key} = {metadata.get(key)!r}; only {value!r} can be converted"
            )


def _rename(name: str) -> str:
    *place, part, suffix = name.split(".")
    if not place:
        return f"{_OUTER[part]}.{suffix}"
    return f"model.layers.{place[1]}.{_INNER[part]}.{suffix}"


def _unpermute(weights: dict[str, mx.array], metadata: dict[str, Any]) -> None:
    """Undo GGUF's order of the rows of q and k, which serves another form of rotary embedding."""
    heads = {
        "q_proj": int(metadata["llama.attention.head_count"].item()),
        "k_proj": int(metadata["llama.attention.head_count_kv"].item()),
    }
    for name, array in weights.items():
        count = heads.get(name.split(".")[-2])
        if count is not None:
            rows, columns = array.shape
            halves = array.reshape(count, rows // count // 2, 2, columns)
            weights[name] = halves.swapaxes(1, 2).reshape(rows, columns)


def _bits(weights: dict[str, mx.array], place: str) -> int:
    columns = weights[f"{place}.scales"].shape[1] * _GROUP_SIZE
    return int(weights[f"{place}.weight"].shape[1]) * 32 // int(columns)


def _quantized(weights: dict[str, mx.array]) -> list[str]:
    return [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]


def _quantization(weights: dict[str, mx.array]) -> dict[str, Any]:
    each = {place: _bits(weights, place) for place in _quantized(weights)}
    common = min(each.values())
    settings: dict[str, Any] = {"group_size": _GROUP_SIZE, "bits": common, "mode": "affine"}
    for place, bits in each.items():
        if bits != common:
            settings[place] = {"group_size": _GROUP_SIZE, "bits": bits, "mode": "affine"}
    return settings


def _dequantize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    places = set(_quantized(weights))
    dense = {n: a for n, a in weights.items() if n.rpartition(".")[0] not in places}
    for place in places:
        dense[f"{place}.weight"] = mx.dequantize(
            weights[f"{place}.weight"],
            _as_float32(weights[f"{place}.scales"]),
            _as_float32(weights[f"{place}.biases"]),
            group_size=_GROUP_SIZE,
            bits=_bits(weights, place),
        )
    return dense


def _as_float32(array: mx.array) -> mx.array:
    return array if array.dtype == mx.uint32 else array.astype(mx.float32)


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    def number(key: str) -> Any:
        return metadata[key].item()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": number("llama.embedding_length"),
        "num_hidden_layers": number("llama.block_count"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_attention_heads": number("llama.attention.head_count"),
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "head_dim": number("llama.rope.dimension_count"),
        "rms_norm_eps": round(number("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": number("llama.rope.freq_base"),
        "rope_traditional": False,
        "max_position_embeddings": number("llama.context_length"),
        "vocab_size": number("llama.vocab_size"),
        "tie_word_embeddings": True,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": number("tokenizer.ggml.padding_token_id"),
    }


def _write_tokenizer(folder: Path, metadata: dict[str, Any]) -> None:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    def token(name: str) -> str:
        return tokens[int(metadata[f"tokenizer.ggml.{name}_token_id"].item())]

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"].item(),
        "chat_template": metadata["tokenizer.chat_template"],
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
