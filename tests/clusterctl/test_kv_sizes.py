"""What a key-value cache takes, of models whose figures are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.kv_sizes import KvShape, Layers, Quantization, kv_shape

LLAMA_3_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
QWEN3_32B = {**LLAMA_3_8B, "num_hidden_layers": 64, "num_attention_heads": 64, "head_dim": 128}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
GPT_OSS_20B = {
    **LLAMA_3_8B,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


@pytest.mark.parametrize(
    ("config", "token_bytes"),
    [
        (LLAMA_3_8B, 131_072),
        (QWEN3_32B, 262_144),
        (DEEPSEEK_V3, 61 * 576 * 2),
        ({**DEEPSEEK_V3, "model_type": "deepseek_v2"}, 61 * 128 * (192 + 128) * 2),
        ({"model_type": "x", "text_config": LLAMA_3_8B}, 131_072),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 12 * 2 * 768 * 2),
        ({**LLAMA_3_8B, "layer_types": ["conv", "full_attention"] * 16}, 65_536),
        ({**LLAMA_3_8B, "full_attention_interval": 4}, 32_768),
        ({**LLAMA_3_8B, "hybrid_override_pattern": "M-M*-" * 4}, 4 * 4096),
    ],
)
def test_a_token_of_a_layer_that_sees_everything(config, token_bytes):
    shape = kv_shape(config, 2)
    assert shape.bytes_for(512) - shape.bytes_for(256) == 256 * token_bytes


def test_a_window_is_the_most_that_its_layers_keep():
    layer = 2 * 8 * 64 * 2
    assert kv_shape(GPT_OSS_20B, 2).bytes_for(131_072) == 12 * layer * (131_072 + 128)


def test_layers_without_names_follow_the_pattern_of_their_kind():
    config = {**LLAMA_3_8B, "model_type": "gemma3_text", "sliding_window": 1024, "num_hidden_layers": 12}
    full, windowed = kv_shape(config, 2).layers
    assert (full.count, full.window, windowed.count, windowed.window) == (2, None, 10, 1024)
    assert kv_shape({**config, "model_type": "qwen2"}, 2).layers[0].count == 12


def test_layers_that_share_keep_nothing_of_their_own_and_global_ones_have_their_own_form():
    config = {
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
    }
    assert [(each.count, each.token_bytes) for each in kv_shape(config, 2).layers] == [(1, 4096), (1, 2048)]


def test_a_recurrent_state_has_a_size_of_its_own():
    config = {
        **LLAMA_3_8B,
        "full_attention_interval": 4,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
    assert kv_shape(config, 2).state_bytes == 24 * (32 * 128 * 128 * 4 + 3 * (2 * 2048 + 4096) * 2)


def test_a_quantized_cache_has_scales_and_biases():
    quantized = kv_shape(LLAMA_3_8B, 2, Quantization(4, 64))
    assert quantized.bytes_for(256) == 256 * 32 * 2 * (1024 // 2 + 1024 // 64 * 4)


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": 2}, {"num_attention_heads": 2}])
def test_a_configuration_that_does_not_tell(config):
    with pytest.raises(ValueError, match=r"config\.json tells no"):
        kv_shape(config, 2)


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_the_longest_that_fits_fits_and_a_longer_one_does_not(size, most):
    shape = KvShape((Layers(3, 1000), Layers(2, 500, 128)), 77)
    longest = shape.longest_in(size, most)
    assert longest == 0 or shape.bytes_for(longest) <= size
    assert longest == most or shape.bytes_for(longest + 1) > size
