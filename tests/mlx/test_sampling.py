"""How tokens are drawn, against a reference in numpy that does it one row and one step at a time."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from worker.engine.blas import prepare_blas
from worker.engine.settings import SamplingSettings, noise_key

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
import numpy as np  # noqa: E402

import worker.engine.sampling  # noqa: E402
from worker.engine.noise import gumbel  # noqa: E402
from worker.engine.sampling import SHORT_LIST, Draw, draw, greedy  # noqa: E402

PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
ROW = mx.log(mx.array([PROBABILITIES]))
SPECIAL = (0, 3)
SIZES = (5, SHORT_LIST, 3000, 10_000)


def sampling(**changes):
    return SamplingSettings(**{"seed": 11, **changes})


def draws(count=2000, **changes):
    return [int(draw(ROW, [Draw(sampling(**changes), position)])[0]) for position in range(count)]


def rows_of(size, count=4, seed=0, sharpness=3.0):
    values = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32) * sharpness
    return mx.array(values) - mx.logsumexp(mx.array(values), axis=-1, keepdims=True)


def left(logprobs, wanted, position, special=()):
    """The tokens that the filters leave of one row, by their definitions, in order."""
    order = sorted(range(len(logprobs)), key=lambda i: -logprobs[i])
    mass = {i: math.exp(logprobs[i]) for i in order}
    if wanted.top_p < 1:
        kept, total = [], 0.0
        for i in order:
            if total >= max(wanted.top_p, 1e-6):
                break
            kept.append(i)
            total += mass[i]
        order = kept
    order = [i for i in order if mass[i] >= wanted.min_p * mass[order[0]]]
    if wanted.excludes_top(position):
        whole = sum(mass[i] for i in order)
        over = [i for i in order if mass[i] / whole > wanted.xtc_threshold]
        order = [i for i in order if i not in over[:-1] or i in special]
    return order[: wanted.top_k] if wanted.top_k else order


def reference(logprobs, wanted, position, special=()):
    """The token of one row, and by how much it won."""
    if wanted.greedy:
        scores = {i: float(value) for i, value in enumerate(logprobs)}
    else:
        noise = np.array(gumbel([noise_key(wanted.seed, position)], mx.arange(len(logprobs))[None]))[0]
        scores = {
            i: float(logprobs[i]) / wanted.temperature + float(noise[i])
            for i in left(logprobs, wanted, position, special)
        }
    first, second, *_ = [*sorted(scores, key=lambda i: -scores[i])[:2], None]
    return first, math.inf if second is None else scores[first] - scores[second]


def drawn(logprobs, wanted, special=()):
    found: Any = draw(logprobs, wanted, special).tolist()
    return found


SETTINGS = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.0, 0.3, 0.9, 0.999]),
    top_k=st.sampled_from([0, 1, 3, 40, 511, 600]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.001, 0.05, 0.5]),
    seed=st.integers(0, 2**64 - 1),
)


@profile(max_examples=150, deadline=None)
@given(
    st.sampled_from(SIZES),
    st.integers(0, 1000),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.lists(st.tuples(SETTINGS, st.integers(0, 10_000)), min_size=1, max_size=6),
)
def test_rows_of_all_kinds_together_are_drawn_as_the_definitions_say(size, seed, sharpness, wanted):
    logprobs = rows_of(size, len(wanted), seed, sharpness)
    found = drawn(logprobs, [Draw(*each) for each in wanted], SPECIAL)
    for row, token, each in zip(np.array(logprobs), found, wanted, strict=True):
        expected, lead = reference(row, each[0], each[1], SPECIAL)
        # Where the last digits decide which token is the last that a filter leaves, either is right.
        assert token == expected or lead < 1e-4 or edge(row, *each)


def edge(logprobs, wanted, position):
    """Whether the set that the filters leave hangs on the last digits."""
    return any(
        left(logprobs * scale, wanted, position, SPECIAL) != left(logprobs, wanted, position, SPECIAL)
        for scale in (1 - 1e-5, 1 + 1e-5)
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_row_draws_the_same_alone_as_among_others(size):
    wanted = [
        sampling(temperature=0.0), sampling(seed=1), sampling(seed=2, top_p=0.9), sampling(seed=3, top_k=5),
        sampling(seed=4, min_p=0.05), sampling(seed=5, xtc_probability=1.0),
        sampling(seed=6, temperature=2.0),
    ]  # fmt: skip
    logprobs = rows_of(size, len(wanted))
    for position in range(10):
        each = [Draw(one, position) for one in wanted]
        alone = [int(draw(logprobs[i : i + 1], each[i : i + 1])[0]) for i in range(len(wanted))]
        assert drawn(logprobs, each) == alone
        back = drawn(logprobs[::-1], each[::-1])
        assert back[::-1] == alone


def test_a_draw_depends_on_seed_and_position_only():
    assert draws(50) == draws(50)
    assert draws(50) != draws(50, seed=12)
    assert len(set(draws(50))) > 1


def test_draws_follow_the_probabilities():
    drawn = draws()
    for token, probability in enumerate(PROBABILITIES):
        error = 4 * math.sqrt(probability * (1 - probability) / len(drawn))
        assert abs(drawn.count(token) / len(drawn) - probability) < error


def test_noise_is_gumbel_and_alike_wherever_a_token_stands():
    noise = np.array(gumbel([1, 2**64 - 1], mx.arange(200_000)[None]))
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - math.pi**2 / 6) < 0.02
    for x in (-2.0, -1.0, 0.0, 2.0, 5.0, 8.0):
        share = math.exp(-math.exp(-x))
        assert abs((noise < x).mean() - share) < 5 * math.sqrt(share * (1 - share) / noise.size) + 1e-6
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.01
    assert abs(np.corrcoef(noise[0][1:], noise[0][:-1])[0, 1]) < 0.01
    some = mx.array([[7, 3, 199_999]])
    assert gumbel([1], some).tolist() == [noise[0][[7, 3, 199_999]].tolist()]


def test_noise_never_changes():
    """Answers of a seed stay the same from version to version."""
    expected = [[1.14316, 0.025690, 0.278367]]
    assert np.allclose(np.array(gumbel([noise_key(7, 3)], mx.array([[0, 1, 49151]]))), expected, atol=1e-5)


def test_a_low_temperature_prefers_the_likeliest():
    assert draws(400, temperature=0.2).count(0) > 380


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.4}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {1, 2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.12, "top_k": 1}, {2}),
    ],
)
def test_filters_leave_the_allowed_tokens(changes, allowed):
    assert set(draws(300, **changes)) == allowed


def test_xtc_spares_what_ends_an_answer_or_a_line():
    wanted = sampling(xtc_probability=1.0, xtc_threshold=0.2)
    assert {int(draw(ROW, [Draw(wanted, i)], SPECIAL)[0]) for i in range(300)} == {0, 1, 2, 3}


def test_what_is_no_number_harms_only_its_own_row():
    rows = mx.concatenate([mx.full((1, 3000), mx.nan), rows_of(3000, 1)])
    for wanted in (sampling(), sampling(top_p=0.9), sampling(top_k=3), sampling(temperature=0.0)):
        both = drawn(rows, [Draw(wanted, 4)] * 2)
        assert 0 <= both[0] < 3000
        assert both[1] == int(draw(rows[1:], [Draw(wanted, 4)])[0])


def test_temperature_nought_takes_the_likeliest():
    both = mx.concatenate([ROW, ROW[:, ::-1]])
    assert greedy(both).tolist() == drawn(both, [Draw(sampling(temperature=0.0), 5)] * 2) == [0, 3]


def test_a_gpu_which_does_not_wait_for_the_short_list_draws_the_same(monkeypatch):
    wanted = [
        Draw(sampling(seed=seed, **changes), seed)
        for seed in range(4)
        for changes in (
            {"top_p": 0.3},
            {"top_p": 0.99},
            {"top_k": 5},
            {"min_p": 0.001, "xtc_probability": 0.5},
        )
    ]
    logprobs = rows_of(3000, len(wanted))
    on_cpu = drawn(logprobs, wanted, SPECIAL)
    monkeypatch.setattr(worker.engine.sampling, "_on_cpu", lambda: False)
    assert drawn(logprobs, wanted, SPECIAL) == on_cpu
