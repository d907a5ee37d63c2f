"""Single sequences on tiny random models, with and without a draft. No thread, no event loop."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.engine.blas import prepare_blas
from worker.engine.output import EngineFailed
from worker.engine.sequence import Sequence
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
from mlx.utils import tree_map  # noqa: E402
from mlx_lm.models.cache import QuantizedKVCache, RotatingKVCache  # noqa: E402
from mlx_lm.models.llama import Model, ModelArgs  # noqa: E402

from worker.engine.batch import Batch  # noqa: E402
from worker.engine.batch_sampler import BatchSampler  # noqa: E402
from worker.engine.caches import CacheOptions, Caches  # noqa: E402
from worker.engine.prefix_cache import BLOCK, PrefixCache, open_prefix_cache  # noqa: E402
from worker.engine.prefix_files import PrefixOptions  # noqa: E402
from worker.engine.solo import Networks, Solo  # noqa: E402

VOCABULARY = 64
PLAIN = CacheOptions()
QUANTIZED = CacheOptions(kv_bits=8, kv_group_size=32)


def network(seed, head_dim=32, vocabulary=VOCABULARY):
    mx.random.seed(seed)
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=64,
            num_attention_heads=2,
            head_dim=head_dim,
            num_key_value_heads=1,
            rms_norm_eps=1e-5,
            vocab_size=vocabulary,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        )
    )
    mx.eval(model.parameters())
    return model


def noisy(model):
    """One that often says the same."""
    copy = network(1)
    copy.update(tree_map(lambda x: x + 0.02 * mx.random.normal(x.shape), model.parameters()))
    mx.eval(copy.parameters())
    return copy


@pytest.fixture(scope="module")
def model():
    return network(1)


@pytest.fixture(scope="module")
def draft(model):
    return noisy(model)


def sequence(prompt, max_tokens=12, emitted=(), stop_ids=(), **changes):
    sampling = {"temperature": 0.0, "seed": 1, **changes}
    return Sequence(
        "r", list(prompt), max_tokens, SamplingSettings(**sampling), frozenset(stop_ids), lambda event: None,
        list(emitted),
    )  # fmt: skip


def solo(model, draft=None, options=PLAIN, prefix_bytes=0, drafts=3, vocabulary=VOCABULARY):
    networks = Networks(model, draft, drafts, vocabulary)
    return Solo(networks, Caches(networks.all, options), PrefixCache(prefix_bytes))


def run(stepper, *sequences):
    """All events, in order."""
    for each in sequences:
        stepper.add(each)
    events = []
    for _ in range(500):
        events += stepper.step()
        if not stepper.has_work:
            return [event for _sequence, event in events]
    raise AssertionError("it does not end")


def answer(stepper, *args, **kwargs):
    one = sequence(*args, **kwargs)
    events = run(stepper, one)
    tokens = [event.token for event in events if event.token is not None]
    assert one.emitted == [*kwargs.get("emitted", ()), *tokens]
    return tokens


PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
PENALIZED = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "logit_bias": ((5, 1.5),),
    "min_tokens": 4,
}
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "min_p": 0.01, "seed": 77}


@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    max_tokens=st.integers(1, 30),
    drafts=st.integers(1, 5),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    known=st.integers(0, 29),
    changes=st.sampled_from([{}, PENALIZED, {"repetition_penalty": 1.2, "repetition_context_size": 5}]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_draft_changes_no_token_and_neither_does_a_new_start(  # noqa: PLR0917 (what it ranges over)
    model, draft, prompt, max_tokens, drafts, seed, known, changes
):
    how = changes if seed is None else {**changes, **SAMPLED, "seed": seed}
    alone = answer(solo(model), prompt, max_tokens, **how)
    drafted = solo(model, draft, drafts=drafts)
    assert answer(drafted, prompt, max_tokens, **how) == alone
    first = alone[: min(known, max_tokens - 1)]
    for stepper in (solo(model), drafted):
        assert first + answer(stepper, prompt, max_tokens, emitted=first, **how) == alone


@pytest.mark.parametrize(("max_tokens", "proposed"), [(8, 6), (6, 5), (1, 1), (4, 3)])
def test_every_proposal_of_an_equal_draft_is_counted_as_accepted(model, max_tokens, proposed):
    events = run(solo(model, model), sequence(PROMPT, max_tokens))
    assert len([event for event in events if event.token is not None]) == max_tokens
    assert sum(event.drafts for event in events) == sum(event.accepted for event in events) == proposed


def test_proposals_in_vain_are_counted_too(model, draft):
    events = run(solo(model, draft), sequence(PROMPT, 40))
    drafts, accepted = sum(e.drafts for e in events), sum(e.accepted for e in events)
    tokens = len([event for event in events if event.token is not None])
    assert 0 < accepted < drafts
    assert tokens == 40
    assert accepted < tokens


def test_without_a_draft_nothing_is_counted(model):
    assert {(event.drafts, event.accepted) for event in run(solo(model), sequence(PROMPT))} == {(0, 0)}


def test_a_stop_token_ends_a_round_in_its_middle(model):
    whole = answer(solo(model), PROMPT, 12)
    for stop in whole:
        drafted = answer(solo(model, model), PROMPT, 12, stop_ids=[stop])
        assert drafted == whole[: whole.index(stop) + 1]


@pytest.mark.parametrize("with_draft", ["none", "like it", "itself"])
def test_a_prefix_is_computed_once(model, draft, with_draft):
    """With itself as draft, the draft has not read the last token that it proposed."""
    drafts = {"none": None, "like it": draft, "itself": model}
    stepper = solo(model, drafts[with_draft], prefix_bytes=1 << 24)
    prompt = PROMPT * 3
    cold, warm = run(stepper, sequence(prompt)), run(stepper, sequence(prompt))
    beside = run(stepper, sequence([*prompt[:25], 1, 2, 3]))
    assert cold[0].cached_tokens == 0
    assert len(prompt) - 2 <= warm[0].cached_tokens < len(prompt)
    assert 24 <= beside[0].cached_tokens <= 25
    assert [e.token for e in warm[1:]] == [e.token for e in cold[1:]]
    assert [e.token for e in beside[1:]] == answer(solo(model), [*prompt[:25], 1, 2, 3])
    stepper.clear_prefixes()
    assert stepper.prefix_stats["prefix_cache_bytes"] == 0


@pytest.mark.parametrize("drafted", [False, True])
def test_a_prefix_outlives_the_process(model, draft, drafted, tmp_path):
    networks = Networks(model, draft if drafted else None, 3, VOCABULARY)
    caches = Caches(networks.all, PLAIN)
    empty = [layer for cache in caches.new() for layer in cache]

    def started():
        return Solo(
            networks, caches, open_prefix_cache(empty, "1", PrefixOptions(1 << 24, 1 << 24, tmp_path))
        )

    prompt = PROMPT * 8
    before = started()
    expected = answer(before, prompt)
    before.close()
    after = started()
    events = run(after, sequence(prompt))
    assert events[0].cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK > 0
    assert [event.token for event in events[1:]] == expected
    after.close()


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_what_was_cut_off_leaves_a_beginning_that_is_right(model, draft, drafted, steps):
    stepper = solo(model, draft if drafted else None, prefix_bytes=1 << 24)
    first = sequence(PROMPT * 3, 30)
    stepper.add(first)
    for _ in range(steps):
        stepper.step()
    stepper.remove(first)
    assert not stepper.has_work
    assert answer(stepper, PROMPT * 3) == answer(solo(model), PROMPT * 3)


@pytest.mark.parametrize("changes", [{}, PENALIZED, {**SAMPLED, "xtc_probability": 0.5}])
def test_it_draws_what_a_batch_draws_and_reports_the_models_own_log_probabilities(model, draft, changes):
    def events_of(stepper):
        return run(stepper, sequence(PROMPT, 16, logprobs=3, stop_ids=[1], **changes))[1:]

    sampler = BatchSampler(model)
    batched = events_of(Batch(sampler, 2, PrefixCache(0)))
    for stepper in (solo(model), solo(model, draft)):
        found = events_of(stepper)
        assert [event.token for event in found] == [event.token for event in batched]
        for ours, theirs in zip(found, batched, strict=True):
            assert ours.likelihood.logprob == pytest.approx(theirs.likelihood.logprob, abs=1e-4)
            assert [token for token, _ in ours.likelihood.top] == [
                token for token, _ in theirs.likelihood.top
            ]


def test_a_long_prompt_is_read_in_pieces_and_may_be_left_between_them(model):
    stepper = solo(model)
    long, short = sequence([1] * 1000), sequence(PROMPT)
    stepper.add(long)
    ((_, taken),) = stepper.step()
    assert taken.cached_tokens == 0
    assert 0 < stepper.prefill_tokens < 1000
    stepper.add(short)
    stepper.remove(long)
    assert (stepper.running, stepper.prefill_tokens) == (0, 0)
    assert [event.token for event in run(stepper)][1:] == answer(solo(model), PROMPT)


def test_one_after_the_other_in_their_order(model):
    stepper, order = solo(model), []
    sequences = [sequence(PROMPT, 3), sequence(PROMPT[:4], 2), sequence(PROMPT[:6], 2)]
    for each in sequences:
        stepper.add(each)
    stepper.remove(sequences[1])
    while stepper.has_work:
        order += [sequences.index(each) for each, _event in stepper.step()]
    assert order == [0] * 4 + [2] * 3


@pytest.mark.parametrize("drafted", [False, True])
def test_a_quantized_cache_is_one_and_gives_nearly_the_same(model, draft, drafted):
    networks = [model, draft] if drafted else [model]
    for cache in Caches(networks, QUANTIZED).new():
        assert {type(layer) for layer in cache} == {QuantizedKVCache}
    stepper = solo(model, draft if drafted else None, QUANTIZED, prefix_bytes=1 << 24)
    whole = answer(stepper, PROMPT * 20, 20)
    assert len(whole) == 20
    for known in (1, 7, 19):
        assert whole[:known] + answer(stepper, PROMPT * 20, 20, emitted=whole[:known]) == whole
    assert stepper.prefix_stats["prefix_cache_entries"] == 0


def test_quantizing_may_begin_later(model):
    caches = Caches([model], CacheOptions(kv_bits=8, kv_group_size=32, quantized_kv_start=5))
    (cache,) = caches.new()
    model(mx.array([[1, 2, 3]]), cache=cache)
    caches.quantize(cache)
    assert not any(isinstance(layer, QuantizedKVCache) for layer in cache)
    model(mx.array([[1, 2, 3]]), cache=cache)
    caches.quantize(cache)
    assert all(isinstance(layer, QuantizedKVCache) for layer in cache)


def test_a_cache_that_cannot_be_quantized_is_refused_in_words():
    with pytest.raises(ValueError, match=r"llama model cannot be quantized .* kv_group_size = 32"):
        Caches([network(1, head_dim=8)], QUANTIZED)


def test_a_bounded_cache_forgets_the_beginning(model):
    (cache,) = Caches([model], CacheOptions(max_kv_size=16)).new()
    assert {layer.max_size for layer in cache} == {16}
    assert len(answer(solo(model, options=CacheOptions(max_kv_size=16)), PROMPT * 3, 30)) == 30


class SlidingModel:
    """As much of one as is looked at."""

    model_type = "sliding"
    layers = (None, None)

    def make_cache(self):
        return [RotatingKVCache(8), RotatingKVCache(8)]


def test_a_draft_for_a_model_with_sliding_windows_is_refused_in_words(model):
    with pytest.raises(ValueError, match=r"sliding model has others \(RotatingKVCache\)"):
        Caches([SlidingModel(), model], CacheOptions())
    Caches([SlidingModel()], CacheOptions())


def test_ids_that_one_of_both_does_not_know_are_never_drawn(model):
    """A padded vocabulary; the smaller model's process would end at such an id."""
    small = network(2, vocabulary=VOCABULARY // 2)
    stepper = solo(model, small, vocabulary=VOCABULARY // 2)
    drawn = answer(stepper, [3, 14, 15], 60, temperature=2.0)
    assert max(drawn) < VOCABULARY // 2
    assert drawn == answer(solo(model, vocabulary=VOCABULARY // 2), [3, 14, 15], 60, temperature=2.0)


class BrokenModel(Model):  # type: ignore[misc]
    """Says what is not a number."""

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) * mx.nan


def test_fc_05_an_output_that_is_no_number_fails_its_request_and_the_next_such_the_engine(model):
    stepper = solo(BrokenModel(model.args))
    assert "not a number" in str(run(stepper, sequence(PROMPT))[-1].error)
    first, second = sequence(PROMPT), sequence(PROMPT)
    events = run(stepper, first, second)
    assert [type(event.error) for event in events if event.error] == [EngineFailed, EngineFailed]
    assert not stepper.has_work


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_step_that_fails_once_changes_nothing(model, draft, drafted, step):
    stepper = solo(model, draft if drafted else None)
    one = sequence(PROMPT * 3, 12)
    stepper.add(one)
    for _ in range(step):
        stepper.step()
    healthy, stepper._networks = stepper._networks, Networks(BrokenModel(model.args))
    if stepper._run is not None and stepper._run.tokens is not None:
        stepper._run.tokens = (1 / 0 for _ in (0,))
    assert not [event for _, event in stepper.step() if event.error]
    stepper._networks = healthy
    run(stepper)
    assert one.emitted == answer(solo(model), PROMPT * 3, 12)
