"""Whether workers fit into a machine, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.kv_sizes import KvShape, Layers
from clusterctl.memory_fit import GIB, Asked, Fit, Machine, ModelSizes, need_of, size

TOKEN = 1 << 17
MODEL = ModelSizes(
    weights=16 * GIB,
    shape=KvShape((Layers(1, TOKEN),)),
    context=32_768,
    step_bytes=100_000,
    logits_bytes=600_000,
)
SLOT = 32_768 * TOKEN  # 4 GiB


def asked(worker_id="w", **more):
    return Asked(worker_id, **{"max_num_seqs": 8, **more})


def fit(*needs, memory=64 * GIB, **machine):
    return Fit(Machine("studio-1", memory, **machine), needs)


@pytest.mark.parametrize(
    ("machine", "ceiling"),
    [
        (Machine("m", 8 * GIB), 6 * GIB),
        (Machine("m", 64 * GIB), 56 * GIB),
        (Machine("m", 64 * GIB, recommended=48 * GIB), 48 * GIB),
        (Machine("m", 64 * GIB, recommended=48 * GIB, wired_limit=52 * GIB), 52 * GIB),
        (Machine("m", 64 * GIB, recommended=48 * GIB, wired_limit=63 * GIB), 56 * GIB),
    ],
)
def test_the_ceiling_is_what_the_gpu_may_hold_and_the_system_leaves(machine, ceiling):
    assert machine.ceiling == ceiling


def test_the_reserve_grows_with_a_large_machine():
    assert Machine("m", 512 * GIB).reserve == int(0.12 * 512 * GIB)


@pytest.mark.parametrize(
    ("limits", "kv", "full"),
    [
        ({}, SLOT, 8 * SLOT),
        ({"max_num_seqs": 2}, SLOT, 2 * SLOT),
        ({"max_model_len": 16_384}, 4 * SLOT, 4 * SLOT),
        ({"max_model_len": 1_000_000}, 8 * SLOT, 8 * SLOT),
        ({"kv_tokens": 65_536}, 2 * SLOT, 8 * SLOT),
        ({"kv_tokens": 16_384}, SLOT // 2, 4 * SLOT),
    ],
)
def test_what_was_asked_for_has_to_fit_and_of_what_was_not_one_request(limits, kv, full):
    need = need_of(asked(**limits), MODEL)
    assert (need.kv, need.full_kv) == (kv, full)


def test_memory_that_is_stated_stands_for_weights_and_prefix_cache():
    need = need_of(asked(stated=20 * GIB, prefix_cache=GIB), MODEL)
    assert (need.weights, need.prefix_cache) == (19 * GIB, GIB)
    assert need_of(asked(stated=3 * GIB), None, "foreign").total == 3 * GIB


def test_a_draft_counts_with_its_weights_and_its_cache():
    draft = ModelSizes(GIB, KvShape((Layers(1, TOKEN // 4),)))
    need = need_of(asked(max_num_seqs=1), ModelSizes(16 * GIB, MODEL.shape, 32_768, draft=draft))
    assert (need.weights, need.kv) == (17 * GIB, SLOT + SLOT // 4)


def test_all_workers_count_and_those_on_demand_take_turns():
    always = need_of(asked("a"), MODEL)
    turns = [need_of(asked(name, on_demand=True), MODEL) for name in ("b", "c")]
    assert fit(always, *turns).total == 2 * always.total
    assert fit(always, need_of(asked("b"), MODEL), memory=32 * GIB).fits is False


def test_what_does_not_fit_is_told_with_options_that_fit():
    found = fit(need_of(asked(max_model_len=32_768), MODEL), memory=48 * GIB)
    assert not found.fits
    advice = found.advice("w")
    assert advice.startswith("it fits with --max-model-len 32768 --max-num-seqs 5 or --max-model-len ")
    length = int(advice.split()[-3])
    assert fit(need_of(asked(max_model_len=length), MODEL), memory=48 * GIB).fits
    assert fit(need_of(asked(max_model_len=32_768, max_num_seqs=5), MODEL), memory=48 * GIB).fits
    assert not fit(need_of(asked(max_model_len=32_768, max_num_seqs=6), MODEL), memory=48 * GIB).fits


def test_weights_alone_that_do_not_fit_are_told_so():
    found = fit(need_of(asked(), MODEL), memory=16 * GIB)
    assert found.advice("w").startswith("take a smaller or more quantized model")


def test_what_only_fits_in_part_is_no_refusal():
    found = fit(need_of(asked(), MODEL), memory=48 * GIB)
    assert found.fits
    assert "it takes nothing new before that. For places that are sure: --max-model-len" in found.advice("w")
    assert fit(need_of(asked(), MODEL), memory=128 * GIB).advice("w") == ""


def test_the_arithmetic_adds_up_in_words():
    found = fit(need_of(asked(prefix_cache=GIB), MODEL), recommended=48 * GIB)
    machine, worker, token, together = found.lines()
    assert machine == (
        "studio-1: 68.7 GB of memory, 8.6 GB of it reserved for the system;"
        " Metal recommends 51.5 GB for the GPU: 51.5 GB for workers"
    )
    assert worker == (
        "w: 23.1 GB = 17.2 GB weights + 4.3 GB KV cache of 1 x 32768 tokens + 1.1 GB prefix cache"
        " + 419 MB for reading prompts + 150 MB process"
    )
    assert token.startswith("  a token takes 1 layers x ")
    assert together == "together: 23.1 GB of 51.5 GB"


@given(st.integers(1, 64), st.integers(256, 32_768), st.integers(8, 512))
def test_whatever_is_advised_fits(places, length, memory):
    found = fit(need_of(asked(max_num_seqs=places, max_model_len=length), MODEL), memory=memory * GIB)
    words = found.advice("w").split()
    for at, word in enumerate(words):
        if word == "--max-model-len" and not found.fits:
            smaller = asked(max_model_len=int(words[at + 1]), max_num_seqs=int(words[at + 3]))
            assert fit(need_of(smaller, MODEL), memory=memory * GIB).fits


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (17_900_000_000, "17.9 GB")]
)
def test_sizes_are_decimal(count, words):
    assert size(count) == words
