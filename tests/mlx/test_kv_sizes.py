"""What is calculated of caches, against those that networks and the engine really hold."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from clusterctl.kv_sizes import Quantization, kv_shape
from clusterctl.memory_fit import Asked, need_of
from clusterctl.model_sizes import model_sizes
from protocol.model_folder import open_folder
from protocol.models import embedded_folder
from worker.engine.blas import prepare_blas

prepare_blas()


def held(network, tokens, quantization=None):
    """Bytes of a cache into which a prompt of so many tokens less one, and one more, was read."""
    import mlx.core as mx  # noqa: PLC0415
    from mlx_lm.models.cache import KVCache, make_prompt_cache  # noqa: PLC0415

    cache = make_prompt_cache(network)
    if quantization is not None:
        sizes = {"bits": quantization.bits, "group_size": quantization.group_size}
        cache = [layer.to_quantized(**sizes) if type(layer) is KVCache else layer for layer in cache]
    for piece in ([1] * (tokens - 1), [1]):
        mx.eval(network(mx.array([piece]), cache=cache))
    return sum(layer.nbytes for layer in cache)


@pytest.mark.parametrize("kind", ["plain", "sliding", "recurrent"])
@pytest.mark.parametrize("tokens", [5, 200, 600])
def test_each_way_of_keeping_state(kind, tokens):
    from tests.mlx.tiny_networks import network  # noqa: PLC0415

    model = network(kind)
    assert held(model, tokens) == kv_shape(dataclasses.asdict(model.args), 4).bytes_for(tokens)


@pytest.mark.parametrize("tokens", [20, 300])
def test_compressed_keys_and_values(tokens):
    from mlx_lm.models import deepseek_v3  # noqa: PLC0415

    config = {
        "model_type": "deepseek_v3",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "n_routed_experts": None,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    model = deepseek_v3.Model(deepseek_v3.ModelArgs(**config))
    assert held(model, tokens) == kv_shape(config, 4).bytes_for(tokens)


def test_the_embedded_model(models):
    from mlx_lm.utils import load_model  # noqa: PLC0415

    folder = open_folder(embedded_folder(models))
    network, _config = load_model(folder.path)
    for quantization in (None, Quantization(8, 32), Quantization(4, 64)):
        sizes = model_sizes(folder, quantization)
        assert sizes.shape is not None
        assert sizes.shape.bytes_for(20) == held(network, 20, quantization)
        assert sizes.weights == sum(path.stat().st_size for path in folder.path.glob("*.safetensors"))


def test_a_batch_of_the_engine_is_padded_to_its_longest(models, make_engine, monkeypatch, untried):
    from worker.engine import rows  # noqa: PLC0415

    made: list[Any] = []
    make: Any = rows.__dict__["BatchGenerator"]

    def seen(*args: Any, **options: Any) -> Any:
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(rows, "BatchGenerator", seen)

    async def most_held():
        found = 0
        async with make_engine(max_num_seqs=2, prefix_cache_mb=0) as engine:

            async def read(words, answer):
                nonlocal found
                async for _item in engine.stream_generate(
                    "word " * words, max_tokens=answer, ignore_eos=True
                ):
                    found = max(found, made[-1].prompt_cache_nbytes)

            await asyncio.gather(read(3, 50), read(300, 4))
        return found

    sizes = model_sizes(open_folder(embedded_folder(models)))
    need = need_of(Asked("w", 2, max_model_len=320, batched=True), sizes)
    found = asyncio.run(most_held())
    assert need.shape is not None
    (layers,) = need.shape.layers
    assert 2 * 300 * layers.count * layers.token_bytes <= found <= need.kv
