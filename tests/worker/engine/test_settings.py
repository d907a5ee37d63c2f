"""What a request asks of the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.output import PromptError
from worker.engine.settings import coin, noise_key, request_settings


def settings(max_tokens=8, temperature=1.0, top_p=1.0, stop=None, **further):
    return request_settings(max_tokens, temperature, top_p, stop, further)


def test_what_is_given_is_taken():
    found = settings(
        9, 0.5, 0.9, ["a"], seed=3, top_k=4, min_p=0.1, stop_token_ids=[7], ignore_eos=True,
        resume_token_ids=[1, 2], request_id="r", attempt=1,
    )  # fmt: skip
    assert (found.max_tokens, found.stop, found.resume_token_ids) == (9, ("a",), (1, 2))
    assert (found.sampling.temperature, found.sampling.top_p) == (0.5, 0.9)
    assert (found.sampling.top_k, found.sampling.min_p, found.sampling.seed) == (4, 0.1, 3)
    assert found.stop_token_ids == {7}
    assert found.ignore_eos


def test_without_a_seed_each_request_draws_its_own():
    assert settings().sampling.seed != settings().sampling.seed


def test_any_integer_is_a_seed():
    assert settings(seed=-1).sampling.seed == 2**64 - 1
    assert settings(seed=2**70 + 5).sampling.seed == 5


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_context_size": -1}, "repetition_context_size"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"frequency_penalty": float("-inf")}, "frequency_penalty"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"mirostat": 1}, "mirostat"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(changes, word):
    with pytest.raises(PromptError, match=word):
        settings(**changes)


@given(st.integers(0, 2**64 - 1), st.integers(0, 100_000), st.integers(0, 100_000))
def test_keys_differ_by_position_and_fit_in_64_bits(seed, first, second):
    assert 0 <= noise_key(seed, first) < 2**64
    assert (noise_key(seed, first) == noise_key(seed, second)) == (first == second)


def test_every_setting_is_taken_and_null_leaves_the_default():
    given = {
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "repetition_penalty": 1.2,
        "repetition_context_size": 20,
        "presence_penalty": -1.0,
        "frequency_penalty": 0.5,
        "min_tokens": 3,
        "logprobs": 0,
    }
    found = settings(**given, logit_bias={7: -100.0}).sampling
    assert {name: getattr(found, name) for name in given} == given
    assert found.logit_bias == ((7, -100.0),)
    nothing = settings(**dict.fromkeys(given), logit_bias=None, stop_token_ids=None, echo=None, seed=1)
    assert nothing == settings(seed=1)


def test_what_a_position_needs():
    plain = settings().sampling
    assert not any((plain.greedy, plain.penalizes, plain.adjusts(0), plain.filters(0)))
    assert settings(temperature=1e-6).sampling.greedy
    assert settings(min_tokens=2).sampling.adjusts(1)
    assert not settings(min_tokens=2).sampling.adjusts(2)
    assert settings(logit_bias={1: 1.0}).sampling.adjusts(9)
    assert settings(presence_penalty=0.1).sampling.penalizes


def test_the_coin_falls_as_often_as_it_should_and_is_none_of_the_noise():
    falls = [settings(xtc_probability=0.3, seed=5).sampling.excludes_top(i) for i in range(4000)]
    assert 0.27 < sum(falls) / len(falls) < 0.33
    assert falls[:50] == [coin(5, i) < 0.3 for i in range(50)]
    assert not any(settings(seed=5).sampling.excludes_top(i) for i in range(100))
    assert all(settings(xtc_probability=1.0, seed=5).sampling.excludes_top(i) for i in range(100))


def test_keys_never_change():
    """Answers of a seed stay the same from version to version."""
    assert noise_key(0, 0) == 0xA706DD2F4D197E6F
    assert noise_key(1, 0) == 0x5E41AB087439611E
    assert noise_key(2**64 - 1, 7) == 0x19F20A9BB46150B6
