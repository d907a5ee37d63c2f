"""A Qwen2-VL of two layers that was trained for a moment: it says which colours its pictures have.

Its tokens are bytes and colours, so that it fits into a megabyte. Of two pictures it names one or both, and
plain text it goes on with in colours.
"""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worker.engine.blas import prepare_blas

COLOURS = {
    "red": (220, 20, 20),
    "green": (20, 180, 20),
    "blue": (20, 20, 220),
    "yellow": (240, 230, 20),
    "black": (10, 10, 10),
    "white": (245, 245, 245),
}
MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
BLIND = "nothing"
WORDS = (*COLOURS, BLIND)
"""Tokens of their own: that is learned sooner. Without a picture there is nothing to see."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PATCH = 14
CONTEXT = 4096
STEPS = 160
RATE = 2e-3
SIZES = (2, 4)
"""Of pictures in training, in patches."""
_BATCH = 8
_QUESTIONS = ("", "?", "What is this?", "What do you see?", "Which colours?", "Tell me", "Look:")
_LETTERS = f"{string.ascii_letters}   .?"


def vision_folder(target: Path) -> Path:
    """Make the model and write it to `target`; it takes some seconds."""
    prepare_blas()
    import mlx.core as mx  # noqa: PLC0415 (after OpenBLAS)
    from mlx.utils import tree_flatten  # noqa: PLC0415

    target.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(target)
    (target / "config.json").write_text(json.dumps(_config(), indent=1))
    model = _model()
    _train(model, target)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
    return target


def other_folder(target: Path) -> Path:
    """A model of the kind Qwen2.5-VL, with the same tokens, whose weights nobody trained."""
    prepare_blas()
    import mlx.core as mx  # noqa: PLC0415 (after OpenBLAS)
    from mlx.utils import tree_flatten, tree_map  # noqa: PLC0415
    from mlx_vlm.models.qwen2_5_vl import Model, ModelConfig, TextConfig, VisionConfig  # noqa: PLC0415

    vision = {"model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 32, "intermediate_size": 64}
    vision |= {"out_hidden_size": 64, "num_heads": 2, "window_size": 56, "fullatt_block_indexes": [1]}
    said = {**_config(), "model_type": "qwen2_5_vl", "vision_config": vision}
    target.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(target)
    (target / "config.json").write_text(json.dumps(said))
    config = ModelConfig.from_dict(json.loads(json.dumps(said)))
    config.text_config = TextConfig.from_dict(said)
    config.vision_config = VisionConfig.from_dict(vision)
    mx.random.seed(1)
    weights = tree_map(lambda value: value * 3 if value.ndim > 1 else value, Model(config).parameters())
    mx.save_safetensors(
        str(target / "model.safetensors"), dict(tree_flatten(weights)), metadata={"format": "mlx"}
    )
    return target


def picture(colour: str, width: int = 4 * PATCH, height: int = 4 * PATCH) -> Any:
    """One that the model knows, as Pillow has it."""
    from PIL import Image  # noqa: PLC0415

    return Image.new("RGB", (width, height), COLOURS[colour])


def _config() -> dict[str, Any]:
    marks = {mark: 256 + len(WORDS) + number for number, mark in enumerate(MARKS)}
    return {
        "model_type": "qwen2_vl",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": 256 + len(MARKS) + len(WORDS),
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": False,
        "bos_token_id": marks["<|endoftext|>"],
        "eos_token_id": marks["<|im_end|>"],
        "image_token_id": marks["<|image_pad|>"],
        "video_token_id": marks["<|video_pad|>"],
        "vision_start_token_id": marks["<|vision_start|>"],
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": 1,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "patch_size": PATCH,
            "spatial_patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "mlp_ratio": 2,
            "in_channels": 3,
        },
    }


def _write_tokenizer(target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *WORDS]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.save(str(target / "tokenizer.json"))
    said = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "Qwen2VLProcessor",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
            "patch_size": PATCH,
            "merge_size": 2,
            "temporal_patch_size": 2,
            "min_pixels": (2 * PATCH) ** 2,
            "max_pixels": (16 * PATCH) ** 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
        "generation_config.json": {"eos_token_id": _config()["eos_token_id"]},
    }
    for name, content in said.items():
        (target / name).write_text(json.dumps(content, indent=1))


def _model() -> Any:
    import mlx.core as mx  # noqa: PLC0415
    from mlx_vlm.models.qwen2_vl import Model, ModelConfig, TextConfig, VisionConfig  # noqa: PLC0415

    config = ModelConfig.from_dict(_config())
    config.text_config = TextConfig.from_dict(_config())
    config.vision_config = VisionConfig.from_dict(_config()["vision_config"])
    mx.random.seed(1)
    return Model(config)


def _train(model: Any, folder: Path) -> None:
    import mlx.core as mx  # noqa: PLC0415
    import mlx.optimizers as optim  # noqa: PLC0415
    from mlx import nn  # noqa: PLC0415

    def loss_of(model: Any, batch: Batch) -> Any:
        made = model.get_input_embeddings(batch.ids, batch.pixels, image_grid_thw=batch.grids)
        logits = model.language_model(batch.ids, made.inputs_embeds, position_ids=batch.positions).logits
        begin = batch.prompt - 1
        return nn.losses.cross_entropy(logits[:, begin:-1], batch.ids[:, begin + 1 :], reduction="mean")

    warm = STEPS // 10
    rate = optim.join_schedules(
        [optim.linear_schedule(1e-4, RATE, warm), optim.cosine_decay(RATE, STEPS - warm, RATE / 20)], [warm]
    )
    optimizer = optim.AdamW(rate)
    step = nn.value_and_grad(model, loss_of)
    school = School(model, folder)
    for _ in range(STEPS):
        loss, gradients = step(model, school.batch())
        gradients, _norm = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state, loss)


@dataclass(frozen=True)
class Batch:
    """Conversations of one layout, with their answers."""

    ids: Any
    prompt: int
    """So many tokens come before the answers."""
    pixels: Any
    grids: Any
    positions: Any


class School:
    """Makes up conversations about all pictures that there are."""

    def __init__(self, model: Any, folder: Path) -> None:
        from mlx_vlm.utils import load_processor  # noqa: PLC0415

        self._model = model
        self._processor: Any = load_processor(folder, add_detokenizer=False)
        self._chance = random.Random(1)
        self._shown = {size: self._all_pictures(size * PATCH) for size in SIZES}

    def _all_pictures(self, size: int) -> list[tuple[str, Any, Any]]:
        """Of each its colour, its patches and their grid."""
        made = [
            (name, self._processor.image_processor(images=[picture(name, size, size)])) for name in COLOURS
        ]
        return [(name, each["pixel_values"], each["image_grid_thw"]) for name, each in made]

    def batch(self) -> Batch:
        """Of pictures, of turns without any, or of plain text, with which it goes on without end."""
        import mlx.core as mx  # noqa: PLC0415

        chance, encode = self._chance, self._processor.tokenizer.encode
        kind, question = chance.choice(("plain", "blind", "seen", "seen", "seen")), chance.choice(_QUESTIONS)
        if kind == "plain" or chance.random() < 0.3:
            question = "".join(chance.choices(_LETTERS, k=chance.randrange(1, 30)))
        pictures = chance.choices(self._shown[chance.choice(SIZES)], k=_BATCH) if kind == "seen" else []
        grids = [grid for _colour, _patches, grid in pictures]
        text = question if kind == "plain" else self._turn(question, grids)
        says = [colour + "<|im_end|>" for colour, *_ in pictures] or [BLIND + "<|im_end|>"]
        prompt, answers = encode(text), [encode(each) for each in says]
        if kind == "plain":
            answers = [encode("".join(COLOURS) * 3)]
        ids = mx.array([prompt + answer for answer in answers])
        every = mx.array(np.concatenate(grids)) if grids else None
        positions, _deltas = self._model.language_model.get_rope_index(
            ids[:1], None if every is None else every[:1]
        )
        return Batch(
            ids,
            len(prompt),
            mx.array(np.concatenate([patches for _colour, patches, _grid in pictures])) if pictures else None,
            every,
            mx.broadcast_to(positions, (3, *ids.shape)),  # all rows are laid out alike
        )

    def _turn(self, question: str, grids: list[Any]) -> str:
        parts = [{"type": "image"}] * bool(grids)
        parts.insert(self._chance.choice((0, len(parts))), {"type": "text", "text": question})
        text: str = self._processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
        )
        return text.replace("<|image_pad|>", "<|image_pad|>" * int(grids[0].prod() // 4)) if grids else text
