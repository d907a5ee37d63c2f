"""A folder with a model of random weights that speaks in the embedded model's tokens: loaded in a moment."""

import json
import os

from worker.engine.blas import prepare_blas

HIDDEN = 64


def tiny_folder(embedded, target, seed=1, layers=2, noise=0.0):
    """Write it to `target`. With `noise` it is like the one of that seed, and often says the same."""
    prepare_blas()
    import mlx.core as mx  # noqa: PLC0415 (after OpenBLAS)
    from mlx.utils import tree_flatten  # noqa: PLC0415
    from mlx_lm.models.llama import Model, ModelArgs  # noqa: PLC0415

    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        os.symlink(embedded / name, target / name)
    config = json.loads((embedded / "config.json").read_text()) | {
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HIDDEN // 2,
    }
    (target / "config.json").write_text(json.dumps(config))
    mx.random.seed(seed)
    weights = dict(tree_flatten(Model(ModelArgs.from_dict(config)).parameters()))
    weights = {name: value + noise * mx.random.normal(value.shape) for name, value in weights.items()}
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
    return target
