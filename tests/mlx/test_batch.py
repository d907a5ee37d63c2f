"""The batch on a tiny random model: faults, order, sizes of pieces. No thread, no event loop."""

from itertools import pairwise

import pytest

from worker.engine.blas import prepare_blas
from worker.engine.output import EngineFailed
from worker.engine.sequence import Sequence
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
from mlx_lm.generate import BatchGenerator  # noqa: E402
from mlx_lm.models.llama import Model, ModelArgs  # noqa: E402

from worker.engine.batch import Batch, generator_options  # noqa: E402
from worker.engine.prefix_cache import PrefixCache  # noqa: E402

VOCABULARY = 64


@pytest.fixture(scope="module")
def network():
    mx.random.seed(1)
    arguments = ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    )
    model = Model(arguments)
    mx.eval(model.parameters())
    return model


class FaultyGenerator(BatchGenerator):  # type: ignore[misc]
    """Raises in the steps that `faults` names by number; `count` goes on over its successors."""

    def __init__(self, network, slots, faults, count):
        super().__init__(network, **generator_options(slots))
        self._faults = faults
        self._count = count

    def next(self):
        self._count.append(None)
        result = super().next()
        if len(self._count) in self._faults:
            raise RuntimeError(f"fault in step {len(self._count)}")  # the work was done, and is lost
        return result


def sampling(temperature=0.0, seed=1, **changes):
    return SamplingSettings(
        **{"temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": seed, **changes}
    )


def sequence(name, length=5, max_tokens=8, settings=None):
    prompt = [(ord(name[0]) * 7 + 3 * i) % VOCABULARY for i in range(length)]
    return Sequence(name, prompt, max_tokens, settings or sampling(), frozenset(), lambda event: None)


def make(network, slots=4, faults=(), prefix_bytes=0, now=lambda: 0.0):
    count: list[None] = []
    prefixes = PrefixCache(prefix_bytes)
    return Batch(lambda: FaultyGenerator(network, slots, set(faults), count), slots, prefixes, now)


def run(batch, *sequences, steps=200):
    """The tokens of each, and the errors of each, when all is done."""
    for each in sequences:
        batch.add(each)
    errors = {}
    for _ in range(steps):
        if not batch.has_work:
            break
        for owner, event in batch.step():
            if event.error is not None:
                errors[owner.request_id] = event.error
    assert not batch.has_work
    return {each.request_id: each.emitted for each in sequences}, errors


def test_all_get_their_tokens_alone_and_together(network):
    names = ["a", "b", "c", "d", "e", "f"]
    together, errors = run(make(network), *(sequence(name) for name in names))
    alone = {}
    for name in names:
        alone.update(run(make(network), sequence(name))[0])
    assert together == alone
    assert not errors
    assert all(len(tokens) == 8 for tokens in together.values())


@pytest.mark.parametrize("fault", [1, 2, 3, 6, 9])
def test_after_a_step_that_raised_everyone_goes_on_where_they_were(network, fault):
    def requests():
        return sequence("a"), sequence("b", settings=sampling(0.9, 5)), sequence("c", length=40)

    undisturbed, _ = run(make(network), *requests())
    disturbed, errors = run(make(network, faults=[fault]), *requests())
    assert disturbed == undisturbed
    assert not errors


def test_three_failed_steps_in_a_row_fail_everyone(network):
    batch = make(network, slots=2, faults=[4, 5, 6])
    _tokens, errors = run(batch, sequence("a"), sequence("b"), sequence("c"))
    assert set(errors) == {"a", "b", "c"}
    assert all(isinstance(error, EngineFailed) for error in errors.values())


def test_failures_that_are_not_in_a_row_are_forgotten(network):
    _tokens, errors = run(make(network, faults=[2, 4, 6, 8]), sequence("a"), sequence("b"))
    assert not errors


def test_a_sampler_that_raises_ends_its_own_request_only(network):
    bad = sequence("b", settings=sampling(0.9, min_p=2.0))
    tokens, errors = run(make(network), sequence("a"), bad, sequence("c"))
    alone, _ = run(make(network), sequence("a"), sequence("c"))
    assert set(errors) == {"b"}
    assert (tokens["a"], tokens["c"]) == (alone["a"], alone["c"])


def test_a_removed_sequence_leaves_the_others_alone(network):
    batch = make(network, slots=2)
    first, second, third = sequence("a", max_tokens=50), sequence("b"), sequence("c")
    batch.add(first)
    batch.add(second)
    for _ in range(6):
        batch.step()
    batch.remove(first)
    batch.remove(first)
    count = len(first.emitted)
    run(batch, third)
    assert len(first.emitted) == count < 50
    assert second.emitted == run(make(network), sequence("b"))[0]["b"]
    assert third.emitted == run(make(network), sequence("c"))[0]["c"]


def test_a_sequence_removed_in_its_prefill_frees_the_prefill(network):
    batch = make(network)
    long = sequence("a", length=1000)
    batch.add(long)
    batch.step()
    assert 0 < batch.prefill_tokens < 1000
    batch.remove(long)
    assert (batch.prefill_tokens, batch.running, batch.has_work) == (0, 0, False)
    assert run(batch, sequence("b"))[0] == run(make(network), sequence("b"))[0]


def test_running_rows_get_a_token_in_each_step_of_a_long_prefill(network):
    batch = make(network)
    running, long = sequence("a", max_tokens=60), sequence("b", length=1200)
    batch.add(running)
    while not running.emitted:
        batch.step()
    batch.add(long)
    batch.step()
    pieces = [batch.prefill_tokens]
    while batch.prefill_tokens > 1:
        before = len(running.emitted)
        batch.step()
        pieces.append(batch.prefill_tokens)
        assert len(running.emitted) == before + 1
    steps = [a - b for a, b in pairwise(pieces)]
    assert len(steps) >= 2
    assert max(steps) <= 512


def test_a_stored_prefix_is_not_changed_by_those_who_use_it(network):
    batch = make(network, prefix_bytes=1 << 20)
    first, _ = run(batch, sequence("a", length=40))
    for _ in range(3):
        again, _ = run(batch, sequence("a", length=40))
        assert again == first
    assert batch.prefix_stats["hits"] == 3


def test_the_prefix_cache_stays_within_its_bytes(network):
    batch = make(network, prefix_bytes=60_000)
    for name in "abcdefgh":
        run(batch, sequence(name, length=40))
        assert batch.prefix_stats["bytes"] <= 60_000
    assert batch.prefix_stats["entries"] > 0
    batch.clear_prefixes()
    assert (batch.prefix_stats["entries"], batch.prefix_stats["bytes"]) == (0, 0)
