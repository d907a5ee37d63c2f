"""The batch on a tiny random model: faults, order, sizes of pieces. No thread, no event loop."""

from itertools import pairwise

import pytest

from tests.mlx.random_model import SMALL as VOCABULARY
from tests.mlx.random_model import random_model
from worker.engine.blas import prepare_blas
from worker.engine.output import EngineFailed
from worker.engine.sequence import Event, Sequence
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
import numpy as np  # noqa: E402
from mlx_lm.generate import BatchGenerator  # noqa: E402

from worker.engine.batch import Batch  # noqa: E402
from worker.engine.batch_sampler import BatchSampler  # noqa: E402
from worker.engine.prefix_cache import PrefixCache  # noqa: E402
from worker.engine.rows import generator_options  # noqa: E402

POISON = 63


@pytest.fixture(scope="module")
def network():
    return random_model(VOCABULARY)


class FaultyGenerator(BatchGenerator):  # type: ignore[misc]
    """Raises in the steps that `faults` names by number, and whenever a prompt with `POISON` is in it."""

    def __init__(self, sampler, slots, faults, count):
        super().__init__(sampler.network, sampler=sampler, **generator_options(slots))
        self._faults = faults
        self._count = count
        """Goes on over the successors."""
        self._poisoned = set()

    def insert_segments(self, segments, **options):
        poisoned = [any(POISON in segment for segment in prompt) for prompt in segments]
        uids = super().insert_segments(segments, **options)
        self._poisoned |= {uid for uid, bad in zip(uids, poisoned, strict=True) if bad}
        return uids

    def remove(self, uids, **options):
        self._poisoned -= set(uids)
        return super().remove(uids, **options)

    def next(self):
        self._count.append(None)
        result = super().next()
        if len(self._count) in self._faults or self._poisoned:
            raise RuntimeError(f"fault in step {len(self._count)}")  # the work was done, and is lost
        return result


def sampling(temperature=0.0, seed=1, **changes):
    return SamplingSettings(
        **{"temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": seed, **changes}
    )


def sequence(name, length=5, max_tokens=8, settings=None):
    prompt = [(ord(name[0]) * 7 + 3 * i) % POISON for i in range(length)]
    return Sequence(name, prompt, max_tokens, settings or sampling(), frozenset(), lambda event: None)


def make(network, slots=4, faults=(), prefix_bytes=0, now=lambda: 0.0):
    count: list[None] = []
    prefixes = PrefixCache(prefix_bytes)

    def make_generator(sampler):
        return FaultyGenerator(sampler, slots, set(faults), count)

    return Batch(BatchSampler(network), slots, prefixes, now, make_generator)


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


def test_a_model_that_fails_at_everything_is_given_up_soon(network):
    count = range(4, 1000)
    batch = make(network, slots=2, faults=count)
    _tokens, errors = run(batch, sequence("a"), sequence("b"), sequence("c"), steps=10)
    assert set(errors) == {"a", "b", "c"}
    assert sum(isinstance(error, EngineFailed) for error in errors.values()) >= 2


def test_a_request_at_which_the_model_fails_is_ended_alone(network):
    def good():
        return [sequence(name, length) for name, length in (("a", 5), ("b", 40), ("c", 6), ("d", 70))]

    bad = sequence("bad", 7)
    bad.prompt[3] = POISON
    batch = make(network, slots=4)
    early, late = good()[:2], good()[2:]
    for each in early:
        batch.add(each)
    for _ in range(3):
        batch.step()
    tokens, errors = run(batch, bad, *late)
    tokens |= {each.request_id: each.emitted for each in early}
    expected, _ = run(make(network, slots=4), *good())
    assert set(errors) == {"bad"}
    assert "fails at this request" in str(errors["bad"])
    assert tokens == expected | {"bad": []}


def test_failures_with_a_token_between_are_forgotten(network):
    _tokens, errors = run(make(network, faults=range(4, 40, 4)), sequence("a"), sequence("b"))
    assert not errors


def test_a_sampler_that_raises_ends_its_own_request_only(network):
    bad = sequence("b", settings=sampling(0.9, min_p="no number"))
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


def test_short_prompts_are_read_together_in_one_step(network):
    together = [sequence(name, 20 + number) for number, name in enumerate("abcd")]
    batch = make(network)
    for each in together:
        batch.add(each)
    batch.step()
    assert (batch.running, batch.prefill_tokens) == (4, 4)
    run(batch)
    assert {each.request_id: each.emitted for each in together} == {
        name: run(make(network), sequence(name, 20 + number))[0][name] for number, name in enumerate("abcd")
    }


@pytest.mark.parametrize("running", [0, 1])
def test_a_long_prompt_is_put_aside_for_a_short_one_and_loses_nothing(network, running):
    batch = make(network)
    first, long, short = sequence("a", max_tokens=100), sequence("b", length=1500), sequence("c")
    if running:
        batch.add(first)
        while not first.emitted:
            batch.step()
    batch.add(long)
    taken = [event.cached_tokens for owner, event in batch.step() if owner is long]
    read = batch.prefill_tokens
    batch.add(short)
    while not short.emitted:
        taken += [event.cached_tokens for owner, event in batch.step() if owner is long]
    assert not long.emitted
    while not long.emitted:
        before = batch.prefill_tokens
        taken += [
            event.cached_tokens for owner, event in batch.step() if owner is long and event.token is None
        ]
        assert batch.prefill_tokens < read or before == 0
    run(batch)
    assert taken == [0]  # it is taken once
    assert long.emitted == run(make(network), sequence("b", length=1500))[0]["b"]
    assert short.emitted == run(make(network), sequence("c"))[0]["c"]


def test_one_that_was_put_aside_and_is_removed_leaves_nothing(network):
    batch = make(network)
    long, short = sequence("b", length=1500), sequence("c", max_tokens=30)
    batch.add(long)
    batch.step()
    batch.add(short)
    batch.step()
    batch.remove(long)
    run(batch)
    assert not batch._aside
    assert len(short.emitted) == 30


def test_a_stored_prefix_is_not_changed_by_those_who_use_it(network):
    batch = make(network, prefix_bytes=1 << 20)
    first, _ = run(batch, sequence("a", length=40))
    for _ in range(3):
        again, _ = run(batch, sequence("a", length=40))
        assert again == first
    assert batch.prefix_stats["prefix_cache_hits"] >= 3 * 39


def test_the_prefix_cache_stays_within_its_bytes(network):
    batch = make(network, prefix_bytes=60_000)
    for name in "abcdefgh":
        run(batch, sequence(name, length=40))
        assert batch.prefix_stats["prefix_cache_bytes"] <= 60_000
    assert batch.prefix_stats["prefix_cache_entries"] > 0
    batch.clear_prefixes()
    assert (batch.prefix_stats["prefix_cache_entries"], batch.prefix_stats["prefix_cache_bytes"]) == (0, 0)


class NumbLast:
    """A network that gives no numbers wherever the last token is the poison."""

    def __init__(self, network):
        self._network = network

    def __call__(self, tokens, cache=None):
        logits = self._network(tokens, cache=cache)
        return mx.where((tokens == POISON)[..., None], mx.nan, logits)

    def __getattr__(self, name):
        return getattr(self._network, name)


@pytest.mark.parametrize("settings", [None, sampling(0.8, 3), sampling(0.8, 3, top_p=0.9)])
def test_nan_logits_fail_their_own_request_in_words_and_the_neighbours_go_on(network, settings):
    batch = Batch(BatchSampler(NumbLast(network)), 4, PrefixCache(0))
    bad = Sequence("bad", [5, POISON], 8, settings or sampling(), frozenset(), lambda event: None)
    tokens, errors = run(batch, sequence("a"), bad, sequence("c", settings=sampling(0.9, 5)))
    alone, _ = run(make(network), sequence("a"), sequence("c", settings=sampling(0.9, 5)))
    assert set(errors) == {"bad"}
    assert "NaN" in str(errors["bad"])
    assert (tokens["a"], tokens["c"], tokens["bad"]) == (alone["a"], alone["c"], [])


def test_log_probabilities_are_the_models_own(network):
    """Whatever penalties, bias and temperature make of them; the drawn token's, and the likeliest ones'."""
    changed = sampling(1.5, 7, logit_bias=((9, 5.0),), presence_penalty=1.0, logprobs=3)
    one, other = sequence("a", settings=changed), sequence("b", settings=sampling(logprobs=0))
    batch = make(network)
    batch.add(one)
    batch.add(other)
    found: dict[str, list[Event]] = {"a": [], "b": []}
    while batch.has_work:
        for owner, event in batch.step():
            if event.token is not None:
                found[owner.request_id].append(event)
    for each in (one, other):
        logits = network(mx.array([each.ids]))[0]
        logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        for place, event in enumerate(found[each.request_id]):
            row = logprobs[len(each.prompt) + place - 1]
            assert event.likelihood is not None
            assert event.likelihood.logprob == pytest.approx(row[event.token], abs=1e-3)
            best = sorted(range(VOCABULARY), key=lambda i: -row[i])[: each.sampling.logprobs]
            assert [token for token, _ in event.likelihood.top] == best
            assert [value for _, value in event.likelihood.top] == pytest.approx(row[best], abs=1e-3)


@pytest.mark.parametrize("length", [1, 2, 64, 65, 66, 150])
def test_a_prompt_is_scored_and_its_answer_is_the_same_as_without(network, length):
    plain = sequence("a", length=length)
    scored = sequence("a", length=length, settings=sampling(logprobs=2))
    scored.score_prompt = True
    batch = make(network)
    batch.add(scored)
    events = [event for _ in range(40) for _, event in batch.step()]
    assert run(make(network), plain)[0]["a"] == scored.emitted
    logits = network(mx.array([scored.prompt]))[0]
    logprobs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    expected = [logprobs[i][token] for i, token in enumerate(scored.prompt[1:])]
    assert [each.logprob for each in events[0].prompt] == pytest.approx(expected, abs=1e-3)
    assert all(len(each.top) == 2 for each in events[0].prompt)


def test_scoring_alone_needs_no_token_and_two_at_once_are_scored_in_turn(network):
    several = [sequence(name, length=100, max_tokens=0, settings=sampling(logprobs=0)) for name in "abc"]
    for each in several:
        each.score_prompt = True
    batch = make(network, slots=4)
    for each in several:
        batch.add(each)
    events = [(owner.request_id, event) for _ in range(20) for owner, event in batch.step()]
    assert [name for name, event in events if event.finish == "length"] == ["a", "b", "c"]
    assert [len(event.prompt) for _, event in events if event.cached_tokens is not None] == [99] * 3
    assert not batch.has_work


def test_a_sequence_removed_while_it_is_scored_leaves_nothing(network):
    scored = sequence("a", length=200, settings=sampling(logprobs=0))
    scored.score_prompt = True
    batch = make(network)
    batch.add(scored)
    batch.step()
    batch.step()
    assert batch.prefill_tokens > 0
    batch.remove(scored)
    assert (batch.prefill_tokens, batch.has_work) == (0, False)
    assert run(batch, sequence("b"))[0] == run(make(network), sequence("b"))[0]
