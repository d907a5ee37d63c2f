"""A whole model folder of some 60 kB: a llama of two layers with random weights, and a byte tokenizer."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS = 16, 32, 2, 2
SPECIAL = ("<|end|>", "<|start|>")
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_model(folder: Path, *, shards: int = 1, seed: int = 1, template: str | None = TEMPLATE) -> Path:
    """Write the model; with several shards, an index too."""
    folder.mkdir(parents=True)
    alphabet = _write_tokenizer(folder, template)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(alphabet),
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "eos_token_id": alphabet["<|end|>"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    rng = random.Random(seed)
    shapes = list(_shapes(len(alphabet)).items())
    index: dict[str, str] = {}
    for number in range(shards):
        name = "model.safetensors" if shards == 1 else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(shapes[number::shards])
        (folder / name).write_bytes(_safetensors(part, rng))
        index |= dict.fromkeys(part, name)
    if shards > 1:
        document = {"metadata": {}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    return folder


def _shapes(vocabulary: int) -> dict[str, list[int]]:
    shapes = {"model.embed_tokens.weight": [vocabulary, HIDDEN], "model.norm.weight": [HIDDEN]}
    for layer in range(LAYERS):
        place = f"model.layers.{layer}"
        shapes |= {f"{place}.self_attn.{name}_proj.weight": [HIDDEN, HIDDEN] for name in "qkvo"}
        shapes |= {f"{place}.mlp.{name}_proj.weight": [INNER, HIDDEN] for name in ("gate", "up")}
        shapes[f"{place}.mlp.down_proj.weight"] = [HIDDEN, INNER]
        shapes |= {f"{place}.{name}_layernorm.weight": [HIDDEN] for name in ("input", "post_attention")}
    return shapes


def _safetensors(shapes: dict[str, list[int]], rng: random.Random) -> bytes:
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        content = struct.pack(f"<{count}f", *(rng.gauss(0, 0.3) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _write_tokenizer(folder: Path, template: str | None) -> dict[str, int]:
    """One token a byte, and the special ones; returns them with their ids."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) for byte in shown] + [chr(256 + place) for place in range(len(hidden))]
    ids = {token: number for number, token in enumerate([*letters, *SPECIAL])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {
            "id": ids[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in SPECIAL
    ]
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {letter: ids[letter] for letter in letters},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return ids
