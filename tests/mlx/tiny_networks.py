"""Random networks of two layers, one for each way in which a model keeps its state."""

import mlx.core as mx
from mlx_lm.models import gemma3_text, lfm2, llama

VOCABULARY = 64
WINDOW = 48

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}


def plain():
    """Every state can be cut anywhere."""
    return llama.Model(
        llama.ModelArgs(
            model_type="llama",
            intermediate_size=64,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=False,
            **COMMON,
        )
    )


def sliding():
    """One layer sees the last 48 tokens only, and forgets what came before."""
    return gemma3_text.Model(
        gemma3_text.ModelArgs(
            model_type="gemma3_text",
            intermediate_size=64,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=WINDOW,
            sliding_window_pattern=2,
            **COMMON,
        )
    )


def recurrent():
    """One layer keeps a running state, of which no beginning can be cut out."""
    return lfm2.Model(
        lfm2.ModelArgs(
            model_type="lfm2",
            max_position_embeddings=4096,
            norm_eps=1e-5,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=32,
            block_ff_dim=64,
            block_multiple_of=8,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            full_attn_idxs=[1],
            **COMMON,
        )
    )


NETWORKS = {"plain": plain, "sliding": sliding, "recurrent": recurrent}


def network(kind, seed=1):
    """Spread wider than at the start of a training, so that the best token is rarely in doubt."""
    mx.random.seed(seed)
    model = NETWORKS[kind]()
    model.update({name: _spread(value) for name, value in model.parameters().items()})
    mx.eval(model.parameters())
    return model


def _spread(value):
    if isinstance(value, dict):
        return {name: _spread(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_spread(each) for each in value]
    return value * 4 if value.ndim > 1 else value
