"""Changed logits, against a reference in numpy that follows vLLM's definitions one token at a time."""

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from worker.engine.blas import prepare_blas
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
import numpy as np  # noqa: E402

from worker.engine.penalties import adjusted, history_of  # noqa: E402

SIZE = 30
IDS = st.lists(st.integers(0, SIZE - 1), max_size=12)
SETTINGS = st.builds(
    SamplingSettings,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    repetition_context_size=st.sampled_from([0, 1, 4]),
    presence_penalty=st.sampled_from([0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.5, -0.25]),
    logit_bias=st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([-100.0, 1.0, 5.0])).map(
        lambda bias: tuple(bias.items())
    ),
    min_tokens=st.sampled_from([0, 3]),
)
ROW = st.tuples(SETTINGS, IDS.filter(bool), IDS, st.lists(st.integers(0, SIZE - 1), max_size=3, unique=True))


def reference(logits, settings, prompt, answer, stop_ids):
    logits = logits.copy()
    for token, bias in settings.logit_bias:
        logits[token] += bias
    if len(answer) < settings.min_tokens:
        logits[stop_ids] = -np.inf
    for token in set((prompt + answer)[-settings.repetition_context_size :]):
        penalty = np.float32(settings.repetition_penalty)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token in answer:
        logits[token] -= np.float32(settings.frequency_penalty)
    for token in set(answer):
        logits[token] -= np.float32(settings.presence_penalty)
    return logits


@profile(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4), st.integers(0, 1000))
def test_rows_together_are_changed_as_the_definitions_say(rows, seed):
    logits = np.random.default_rng(seed).normal(size=(len(rows), SIZE)).astype(np.float32)
    histories = [history_of(each, stop_ids, prompt, answer) for each, prompt, answer, stop_ids in rows]
    before = mx.array(logits)
    found = np.array(adjusted(before, histories))
    expected = [
        reference(row, each, prompt, answer, stop_ids)
        for row, (each, prompt, answer, stop_ids) in zip(logits, rows, strict=True)
    ]
    assert np.allclose(found, np.array(expected), atol=1e-4)
    assert np.array_equal(np.array(before), logits)


@profile(max_examples=50, deadline=None)
@given(ROW)
def test_a_history_that_grows_is_one_that_was_given_at_once(row):
    each, prompt, answer, stop_ids = row
    grown = history_of(each, stop_ids, prompt, [])
    for token in answer:
        grown.append(mx.array([token], mx.uint32))
    whole = history_of(each, stop_ids, prompt, answer)
    logits = mx.random.normal((1, SIZE), key=mx.random.key(1))
    assert adjusted(logits, [grown]).tolist() == adjusted(logits, [whole]).tolist()
    assert grown.position == whole.position == len(answer)
