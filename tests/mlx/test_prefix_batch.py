"""Prompts that begin alike, in a batch on tiny random networks: what is reused, and it changes nothing."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.blas import prepare_blas
from worker.engine.sequence import Sequence
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")
prepare_blas()

import mlx.core as mx  # noqa: E402 (after OpenBLAS)
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

from tests.mlx.tiny_networks import NETWORKS, VOCABULARY, network  # noqa: E402
from worker.engine.batch import Batch  # noqa: E402
from worker.engine.batch_sampler import BatchSampler  # noqa: E402
from worker.engine.prefix_cache import BLOCK, open_prefix_cache  # noqa: E402
from worker.engine.prefix_files import PrefixOptions  # noqa: E402

LOADED: dict[str, Any] = {}
PLENTY = 64 << 20
FINISH = 10_000


def loaded(kind):
    if kind not in LOADED:
        LOADED[kind] = network(kind)
    return LOADED[kind]


def ids(seed, length):
    chosen = random.Random(seed)
    return [chosen.randrange(VOCABULARY) for _ in range(length)]


HEAD = ids(0, 200)
P, X, Y = ids(1, 90), ids(2, 40), ids(3, 30)


def make(kind, folder=None, max_bytes=PLENTY, slots=4):
    model = loaded(kind)
    options = PrefixOptions(max_bytes, PLENTY if folder else 0, folder or Path())
    prefixes = open_prefix_cache(make_prompt_cache(model), "1", options)
    return Batch(BatchSampler(model), slots, prefixes, now=lambda: 0.0)


def sequence(prompt, max_tokens=12, temperature=0.0, name="r"):
    sampling = SamplingSettings(temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, seed=5)
    return Sequence(name, list(prompt), max_tokens, sampling, frozenset(), lambda event: None)


def step(batch, cached=None):
    for owner, event in batch.step():
        assert event.error is None
        if event.cached_tokens is not None and cached is not None:
            cached[id(owner)] = event.cached_tokens


def run(batch, *sequences):
    """The cached tokens of each, in their order, when all have ended."""
    cached: dict[int, int] = {}
    for each in sequences:
        batch.add(each)
    for _ in range(FINISH):
        if not batch.has_work:
            return [cached[id(each)] for each in sequences]
        step(batch, cached)
    raise AssertionError("it does not end")


def answer(batch, prompt, **options):
    """The answer, and how much of the prompt was cached."""
    asked = sequence(prompt, **options)
    (cached,) = run(batch, asked)
    return asked.emitted, cached


def cold(kind, prompt, **options):
    tokens, cached = answer(make(kind, max_bytes=0), prompt, **options)
    assert cached == 0
    return tokens


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_same_prompt_again_reads_one_token_and_answers_the_same(kind):
    batch = make(kind)
    first, cached = answer(batch, HEAD)
    assert cached == 0
    for _ in range(3):
        assert answer(batch, HEAD) == (first, len(HEAD) - 1)
    assert first == cold(kind, HEAD)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_fc_08_a_shorter_or_parting_prompt_sees_nothing_of_the_earlier_one(kind, temperature):
    """FC-08, with every kind of state, also within a sliding window (18 of 48 tokens)."""
    for head, long, other in ((P, X, Y), (P[:18], X[:12], Y[:8])):
        batch = make(kind)
        prompts = [head + long, head + other, head, head + long, head + other + long, head + long]
        for prompt in prompts:
            tokens, _cached = answer(batch, prompt, temperature=temperature)
            assert tokens == cold(kind, prompt, temperature=temperature)


@pytest.mark.parametrize(("kind", "expected"), [("plain", 18), ("sliding", 18), ("recurrent", 0)])
def test_a_state_is_cut_only_where_nothing_of_it_is_lost(kind, expected):
    batch = make(kind)
    answer(batch, P[:18] + X[:10], max_tokens=3)
    assert answer(batch, P[:18] + Y)[1] == expected


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_next_turn_of_a_conversation_reads_only_what_is_new(kind):
    batch = make(kind)
    tokens, _ = answer(batch, HEAD)
    turn = HEAD + tokens + Y
    again, cached = answer(batch, turn)
    assert cached == len(HEAD) + len(tokens)
    assert again == cold(kind, turn)


@pytest.mark.parametrize(("kind", "second"), [("plain", 200), ("sliding", 0), ("recurrent", 0)])
def test_where_prompts_part_is_learnt_from_the_second_one(kind, second):
    batch = make(kind)
    assert answer(batch, HEAD + X)[1] == 0
    assert answer(batch, HEAD + Y)[1] == second
    tokens, cached = answer(batch, HEAD + P)
    assert cached == len(HEAD)
    assert tokens == cold(kind, HEAD + P)


@pytest.mark.parametrize("kind", NETWORKS)
def test_fc_10_switched_off_it_keeps_nothing(kind):
    """FC-10."""
    batch = make(kind, max_bytes=0)
    for _ in range(2):
        assert answer(batch, HEAD)[1] == 0
    assert set(batch.prefix_stats.values()) == {0}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fc_18_a_cut_stream_leaves_a_right_beginning(kind, steps):
    """FC-18: cut after so many steps, then repeated; whole answers leave theirs above."""
    batch = make(kind)
    cut = sequence(HEAD, max_tokens=50)
    batch.add(cut)
    while len(cut.emitted) < steps:
        step(batch)
    batch.remove(cut)
    assert not batch.has_work
    tokens, cached = answer(batch, HEAD)
    assert cached == len(HEAD) - 1
    assert tokens == cold(kind, HEAD)


def test_what_was_read_of_an_aborted_prompt_is_of_use():
    batch = make("plain")
    aborted = sequence(HEAD * 4)
    batch.add(aborted)
    while batch.prefill_tokens in (0, len(HEAD) * 4):
        step(batch)
    read = len(HEAD) * 4 - batch.prefill_tokens
    assert read < len(HEAD) * 4
    batch.remove(aborted)
    tokens, cached = answer(batch, HEAD * 4)
    assert cached == min(read, len(HEAD) * 4 - 1)
    assert tokens == cold("plain", HEAD * 4)


@pytest.mark.parametrize("kind", NETWORKS)
def test_fc_20_small_requests_do_not_drop_a_long_session(kind):
    """FC-20: a budget of one and a half sessions."""
    session = ids(9, 600)
    probe = make(kind)
    answer(probe, session)
    budget = probe.prefix_stats["prefix_cache_bytes"] * 3 // 2
    batch = make(kind, max_bytes=budget)
    tokens, _ = answer(batch, session)
    for number in range(5):
        answer(batch, ids(100 + number, 50), max_tokens=2)
        assert batch.prefix_stats["prefix_cache_bytes"] <= budget
    assert answer(batch, session + tokens + Y)[1] >= len(session)


@pytest.mark.parametrize("kind", NETWORKS)
def test_parallel_prompts_with_one_beginning_read_it_once(kind):
    batch = make(kind)
    waiting = [sequence(HEAD + ids(number, 10), name=str(number)) for number in range(4)]
    cached = run(batch, *waiting)
    assert sorted(cached) == [0, 200, 200, 200]
    for each in waiting:
        assert each.emitted == cold(kind, each.prompt)


@pytest.mark.parametrize("kind", NETWORKS)
def test_choices_of_one_prompt_read_it_once(kind):
    batch = make(kind)
    choices = [sequence(HEAD, name=str(number)) for number in range(3)]
    assert sorted(run(batch, *choices)) == [0, 199, 199]


def test_what_was_read_before_a_shorter_prompt_overtook_is_not_read_again():
    batch = make("plain")
    long, short = sequence(ids(7, 3000), name="long"), sequence(ids(7, 3000)[:700] + X, name="short")
    batch.add(long)
    step(batch)
    assert batch.prefill_tokens > 2000
    (cached,) = run(batch, short)
    assert 0 < cached < 700
    assert batch.prefix_stats["prefix_cache_hits"] == cached + 700
    assert short.emitted == cold("plain", short.prompt)
    assert long.emitted == cold("plain", long.prompt)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    st.sampled_from(sorted(NETWORKS)),
)
def test_followers_of_a_beginning_go_on_whoever_is_aborted(plan, kind):
    """Each joins at a step and may be aborted at another one; none waits for one that has gone."""
    batch = make(kind, slots=2)
    joining = {}
    for number, (join, leave) in enumerate(plan):
        joining[number] = (join, leave, sequence(HEAD + ids(number, 5), max_tokens=4, name=str(number)))
    cached: dict[int, int] = {}
    for now in range(FINISH):
        for join, leave, each in joining.values():
            if join == now:
                batch.add(each)
            elif join < leave == now:
                batch.remove(each)
        if now > 40 and not batch.has_work:
            break
        step(batch, cached)
    for join, leave, each in joining.values():
        expected = cold(kind, each.prompt, max_tokens=4)
        assert each.emitted == expected or (join < leave and each.emitted == expected[: len(each.emitted)])
    if kind == "plain":
        assert sum(known == 0 for known in cached.values()) <= 1 or any(leave > join for join, leave in plan)


PROMPTS = [
    HEAD[:length] + ids(tail, more) for length in (0, 20, 130, 200) for tail, more in ((1, 9), (2, 70))
]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(PROMPTS), min_size=2, max_size=8),
    st.sampled_from(sorted(NETWORKS)),
    st.booleans(),
)
def test_any_use_within_little_room_gives_the_answers_of_a_cold_cache(prompts, kind, together):
    room = 60_000
    batch = make(kind, max_bytes=room)
    asked = [sequence(prompt, max_tokens=5, temperature=0.8) for prompt in prompts]
    for group in [asked] if together else [[each] for each in asked]:
        run(batch, *group)
        assert batch.prefix_stats["prefix_cache_bytes"] <= room
    for each in asked:
        assert each.emitted == cold(kind, each.prompt, max_tokens=5, temperature=0.8)
    batch.clear_prefixes()
    assert (batch.prefix_stats["prefix_cache_entries"], batch.prefix_stats["prefix_cache_bytes"]) == (0, 0)


def test_queries_and_hits_are_counted_in_tokens():
    batch = make("plain")
    answer(batch, HEAD)
    answer(batch, HEAD + X)
    stats = batch.prefix_stats
    assert (stats["prefix_cache_queries"], stats["prefix_cache_hits"]) == (len(HEAD) * 2 + len(X), len(HEAD))


def test_a_state_that_cannot_be_kept_harms_nobody(monkeypatch, caplog):
    def refuse(*_arguments):
        raise RuntimeError("no memory")

    monkeypatch.setattr("worker.engine.prefix_cache.evaluate", refuse)
    batch = make("plain")
    tokens, _ = answer(batch, HEAD)
    assert tokens == cold("plain", HEAD)
    assert batch.prefix_stats["prefix_cache_entries"] == 0
    assert "a state could not be kept" in caplog.text


def to_the_last_token(batch):
    """All that was said of a prompt shorter than a block; its state is not kept yet."""
    asked = sequence(HEAD[:60])
    batch.add(asked)
    while len(asked.emitted) < asked.max_tokens:
        step(batch)
    assert (batch.prefix_stats["prefix_cache_entries"], batch.has_work) == (0, True)
    return asked.ids


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_last_token_does_not_wait_until_the_state_is_kept(kind):
    batch = make(kind)
    turn = to_the_last_token(batch) + Y
    assert batch.step() == []
    assert batch.prefix_stats["prefix_cache_entries"] > 0
    assert not batch.has_work
    assert answer(batch, turn) == (cold(kind, turn), len(turn) - len(Y))


def test_a_state_that_is_not_kept_yet_is_dropped_with_the_others():
    batch = make("plain")
    turn = to_the_last_token(batch) + Y
    batch.clear_prefixes()
    assert not batch.has_work
    assert answer(batch, turn)[1] == 0


def test_a_state_that_is_not_kept_yet_is_written_at_the_end(tmp_path):
    before = make("plain", tmp_path)
    turn = to_the_last_token(before) + Y
    before.close()
    assert answer(make("plain", tmp_path), turn) == (cold("plain", turn), BLOCK)


@pytest.mark.parametrize("kind", NETWORKS)
def test_what_was_of_use_outlives_the_process(kind, tmp_path):
    before = make(kind, tmp_path)
    answer(before, HEAD)
    expected, _ = answer(before, HEAD)
    before.close()
    after = make(kind, tmp_path)
    tokens, cached = answer(after, HEAD)
    assert tokens == expected == cold(kind, HEAD)
    assert cached == (192 if kind == "plain" else 199)
    assert after.prefix_stats["prefix_cache_disk_hits"] == cached
    assert answer(after, HEAD) == (tokens, 199)
    after.close()


class Numb:
    """A network that gives no numbers once it is told so."""

    def __init__(self, model):
        self._model = model
        self.numb = False

    def __call__(self, tokens, cache=None):
        logits = self._model(tokens, cache=cache)
        return logits * mx.nan if self.numb else logits

    def __getattr__(self, name):
        return getattr(self._model, name)


def test_of_a_request_that_went_wrong_nothing_is_kept_neither_in_memory_nor_on_disk(tmp_path):
    model = Numb(loaded("plain"))
    options = PrefixOptions(PLENTY, PLENTY, tmp_path)
    prefixes = open_prefix_cache(make_prompt_cache(model), "1", options)
    batch = Batch(BatchSampler(model), 4, prefixes, now=lambda: 0.0)
    answer(batch, HEAD)
    answer(batch, HEAD)
    assert prefixes._disk is not None
    prefixes._disk._writer._thread.submit(lambda: None).result(60)
    assert batch.prefix_stats["prefix_cache_disk_entries"] == len(HEAD) // BLOCK
    model.numb = True
    batch.add(sequence(HEAD))
    errors = [event.error for _ in range(5) for _owner, event in batch.step() if event.error is not None]
    assert len(errors) == 1
    assert not batch.has_work
    names = ("entries", "bytes", "disk_entries", "disk_bytes")
    assert [batch.prefix_stats[f"prefix_cache_{name}"] for name in names] == [0, 0, 0, 0]
    batch.close()


def test_what_is_cleared_is_gone_from_disk_too(tmp_path):
    batch = make("plain", tmp_path)
    for _ in range(2):
        answer(batch, HEAD)
    batch.clear_prefixes()
    names = ("entries", "bytes", "disk_entries", "disk_bytes")
    assert [batch.prefix_stats[f"prefix_cache_{name}"] for name in names] == [0, 0, 0, 0]
    assert answer(batch, HEAD)[1] == 0
    batch.close()


def test_fc_22_prompts_of_many_lengths_leave_mlx_no_more_buffers():
    """FC-22, without the engine: 300 lengths."""
    batch = make("plain", max_bytes=200_000)
    for length in range(20, 320):
        answer(batch, ids(length, length), max_tokens=1)
        if length == 120:
            before = mx.get_cache_memory() + mx.get_active_memory()
    assert mx.get_cache_memory() + mx.get_active_memory() < before + (8 << 20)
