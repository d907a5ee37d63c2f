"""States of every kind, cut and joined: equal arrays, no tail of another prompt, nothing shared."""

import pytest

from worker.engine.blas import prepare_blas

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
from mlx_lm.models.cache import (  # noqa: E402
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from worker.engine.prefix_state import (  # noqa: E402
    block_of,
    can_cut,
    covers,
    evaluate,
    in_blocks,
    joined,
    restored,
    whole_of,
)


def filled(cache, tokens, heads=2, size=8):
    cache.update_and_fetch(
        mx.random.normal((1, heads, tokens, size)), mx.random.normal((1, heads, tokens, size * 2))
    )
    return cache


def equal(one, other):
    return one.shape == other.shape and bool(mx.array_equal(one, other))


@pytest.mark.parametrize(
    ("tokens", "block", "wanted"), [(10, 4, 10), (10, 4, 9), (300, 64, 300), (300, 64, 257)]
)
def test_blocks_joined_are_the_state_and_no_more(tokens, block, wanted):
    state = [filled(KVCache(), tokens, heads) for heads in (2, 3, 2)]  # layers of two shapes
    blocks = [block_of(state, start, min(start + block, tokens)) for start in range(0, tokens, block)]
    evaluate(blocks)
    assert len(blocks[0].caches) == 2
    again = joined(blocks, wanted)
    for layer, original in zip(again, state, strict=True):
        assert layer.offset == layer.keys.shape[2] == layer.values.shape[2] == wanted
        assert equal(layer.keys, original.keys[:, :, :wanted])
        assert equal(layer.values, original.values[:, :, :wanted])


def test_the_bytes_of_a_block_are_those_of_its_tokens():
    state = [filled(KVCache(), 100) for _ in range(3)]
    assert block_of(state, 0, 64).nbytes == 3 * 2 * 64 * (8 + 16) * 4


def test_who_uses_a_joined_state_changes_no_block():
    state = [filled(KVCache(), 8)]
    block = block_of(state, 0, 8)
    evaluate([block])
    before = mx.array(block.caches[0].keys)
    for _ in range(2):
        layer = joined([block], 8)[0]
        filled(layer, 1)
        layer.keys[:] = 0
        mx.eval(layer.keys)
    assert equal(block.caches[0].keys, before)


@pytest.mark.parametrize("tokens", [20, 47, 48, 49, 130])
def test_a_sliding_window_is_kept_without_what_it_has_left(tokens):
    layer = filled(RotatingKVCache(48), tokens)
    kept = whole_of([layer])
    evaluate([kept])
    assert kept.caches[0].keys.shape[2] == min(tokens, 48)
    assert kept.caches[0].offset == tokens
    assert equal(kept.caches[0].keys, layer.keys[:, :, -48:])


def test_a_window_that_keeps_the_first_tokens_still_has_them():
    layer = RotatingKVCache(16, keep=4)
    for _ in range(30):
        filled(layer, 1)
    again = restored(whole_of([layer]), surplus=0)[0]
    assert (again.keep, again.offset, again.max_size) == (4, 30, 16)
    assert equal(again.keys, layer.keys)


def test_a_whole_state_that_is_cut_has_no_tail():
    state = [filled(KVCache(), 30), filled(RotatingKVCache(48), 30)]
    kept = whole_of(state)
    again = restored(kept, surplus=12)
    for layer, original in zip(again, state, strict=True):
        assert layer.offset == layer.keys.shape[2] == 18
        assert equal(layer.keys, original.keys[:, :, :18])
    assert kept.caches[0].keys.shape[2] == 30


def test_who_uses_a_whole_state_does_not_change_it():
    running = ArraysCache(2)
    running[0], running[1] = mx.ones((1, 3)), mx.ones((1, 4))
    kept = whole_of([running, filled(KVCache(), 5)])
    evaluate([kept])
    again = restored(kept, surplus=0)
    again[0][0][:] = 7
    again[0][1] = mx.zeros((1, 4))
    filled(again[1], 3)
    assert equal(kept.caches[0][0], mx.ones((1, 3)))
    assert equal(kept.caches[0][1], mx.ones((1, 4)))
    assert kept.caches[1].offset == 5


def test_which_kinds_can_be_cut_and_joined():
    plain, window, chunked = (
        filled(KVCache(), 9),
        filled(RotatingKVCache(48), 9),
        filled(ChunkedKVCache(4), 9),
    )
    forgot, quantized = filled(RotatingKVCache(8), 9), QuantizedKVCache()
    assert in_blocks([plain])
    assert not in_blocks([plain, window])
    assert can_cut([plain, window])
    for other in (chunked, forgot, quantized, ArraysCache(1), CacheList(plain)):
        assert not can_cut([plain, other])
        assert not in_blocks([other])


def test_a_state_that_is_not_of_these_tokens_is_found_out():
    assert covers([filled(KVCache(), 9), ArraysCache(1)], 9)
    assert covers([CacheList(filled(KVCache(), 9), ArraysCache(1))], 9)
    assert not covers([filled(KVCache(), 9), filled(KVCache(), 8)], 9)
    assert not covers([CacheList(filled(KVCache(), 8))], 9)


def test_a_quantized_state_is_kept_whole():
    state = [filled(KVCache(), 64, size=64).to_quantized(group_size=32)]
    kept = whole_of(state)
    again = restored(kept, surplus=0)
    assert again[0].offset == 64
    assert all(equal(a, b) for a, b in zip(again[0].keys, state[0].keys, strict=True))
