"""How tokens are drawn."""

import math

import pytest

from worker.engine.blas import prepare_blas
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)

from worker.engine.sampling import SeededSampler, draw, greedy, make_sampler  # noqa: E402

PROBABILITIES = (0.5, 0.25, 0.15, 0.1)
ROW = mx.log(mx.array([PROBABILITIES]))


def settings(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=11):
    return SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)


def draws(count=2000, **changes):
    return [int(draw(ROW, settings(**changes), position)[0]) for position in range(count)]


def test_a_draw_depends_on_seed_and_position_only():
    assert draws(50) == draws(50)
    assert draws(50) != draws(50, seed=12)
    assert len(set(draws(50))) > 1


def test_draws_follow_the_probabilities():
    drawn = draws()
    for token, probability in enumerate(PROBABILITIES):
        error = 4 * math.sqrt(probability * (1 - probability) / len(drawn))
        assert abs(drawn.count(token) / len(drawn) - probability) < error


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
    ],
)
def test_filters_leave_the_allowed_tokens(changes, allowed):
    assert set(draws(300, **changes)) == allowed


def test_temperature_nought_shares_one_sampler():
    assert make_sampler(settings(temperature=0.0), 0) is make_sampler(settings(temperature=0.0, seed=3), 9)
    assert greedy(mx.concatenate([ROW, ROW[:, ::-1]])).tolist() == [0, 3]


def test_a_sampler_goes_on_from_its_position():
    sampler = SeededSampler(settings(), 0)
    whole = [int(sampler(ROW)[0]) for _ in range(20)]
    later = SeededSampler(settings(), 12)
    assert [int(later(ROW)[0]) for _ in range(8)] == whole[12:]


def test_a_failing_sampler_keeps_its_failure_and_goes_on_greedily():
    sampler = SeededSampler(settings(min_p=2.0), 0)
    assert int(sampler(ROW)[0]) == 0
    assert isinstance(sampler.failure, ValueError)
