"""How long a model's context is, by its configuration."""

import pytest

from protocol.model_context import model_context, served_context


def yarn(factor=4.0, kind="yarn", **more):
    return {"rope_type": kind, "factor": factor, **more}


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 8192}, 8192),
        ({"n_positions": 1024, "n_ctx": 1024}, 1024),
        ({"n_positions": 2048, "n_ctx": 1024}, 1024),
        ({"max_seq_len": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 32}, "max_position_embeddings": 64}, 32),
        ({"text_config": {"hidden_size": 8}, "max_position_embeddings": 64}, 64),
        ({"text_config": None, "max_position_embeddings": 64}, 64),
        ({}, None),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -1}, None),
        # llama 3.1 and phi-3 write the long length down, and so do gemma 3 and deepseek
        ({"max_position_embeddings": 131072, "rope_scaling": yarn(8.0, "llama3")}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"type": "longrope"}}, 131072),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": yarn(8.0, "linear"),
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        # Qwen 2.5 with yarn switched on writes the short one
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": yarn(4.0, original_max_position_embeddings=32768),
            },
            131072,
        ),
        ({"max_position_embeddings": 32768, "rope_parameters": yarn(4.0)}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 1.5}}, 6144),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "mrope", "factor": None}}, 4096),
        ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"factor": 8}}}, 4096),
    ],
)
def test_the_context_is_what_the_configuration_means(config, length):
    assert model_context(config) == length


def test_the_shorter_of_model_and_configuration_is_served():
    assert served_context(100, None) == 100
    assert served_context(100, 50) == 50
    assert served_context(100, 101) == 100
    assert served_context(None, 50) == 50
    assert served_context(None, None) is None
