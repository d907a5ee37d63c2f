"""What a request asks of the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.output import PromptError
from worker.engine.settings import noise_key, request_settings


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
        ({"logit_bias": {1: 2.0}}, "logit_bias"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(changes, word):
    with pytest.raises(PromptError, match=word):
        settings(**changes)


@given(st.integers(0, 2**64 - 1), st.integers(0, 100_000), st.integers(0, 100_000))
def test_keys_differ_by_position_and_fit_in_64_bits(seed, first, second):
    assert 0 <= noise_key(seed, first) < 2**64
    assert (noise_key(seed, first) == noise_key(seed, second)) == (first == second)


def test_keys_never_change():
    """Answers of a seed stay the same from version to version."""
    assert noise_key(0, 0) == 0xA706DD2F4D197E6F
    assert noise_key(1, 0) == 0x5E41AB087439611E
    assert noise_key(2**64 - 1, 7) == 0x19F20A9BB46150B6
