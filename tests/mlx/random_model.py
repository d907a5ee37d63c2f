"""A llama of two layers with random weights: whatever a model does to requests, it does in a millisecond."""

from __future__ import annotations

from typing import Any

from worker.engine.blas import prepare_blas

SMALL, LARGE = 64, 3000
"""Vocabularies: one that filters sort whole, one of which they look at the likeliest first."""


def random_model(vocabulary: int = SMALL, seed: int = 1, sharpness: float = 1.0) -> Any:
    """The larger `sharpness`, the surer is the model of its next token."""
    prepare_blas()
    import mlx.core as mx  # noqa: PLC0415 (after OpenBLAS)
    from mlx_lm.models.llama import Model, ModelArgs  # noqa: PLC0415

    mx.random.seed(seed)
    arguments = ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    )
    model = Model(arguments)
    model.lm_head.weight = model.lm_head.weight * sharpness
    mx.eval(model.parameters())
    return model
