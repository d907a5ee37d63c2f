"""Random mixes of requests in one batch: each answer is the one that its request gets alone.

Lengths, joins, leaves, aborts, settings, warm and cold prefixes, continuations from the first tokens,
and memory that runs short at any moment, so that rows give up their caches and come back.
STUDIOFLEET_MIXES and STUDIOFLEET_EMBEDDED_MIXES set how many, STUDIOFLEET_SEED repeats a run.
"""

from __future__ import annotations

import gc
import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import seed as seeded
from hypothesis import settings as profile
from hypothesis import strategies as st

from tests.mlx.random_model import LARGE, SMALL, random_model
from tests.mlx.test_sampling import reference
from worker.engine.sequence import Sequence
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")

import mlx.core as mx
import numpy as np

from worker.engine.batch import Batch
from worker.engine.batch_sampler import BatchSampler
from worker.engine.guard import Guard
from worker.engine.loading import Loader
from worker.engine.memory import MemoryReading
from worker.engine.penalties import adjusted, history_of
from worker.engine.prefix_cache import PrefixCache

MIXES = int(os.environ.get("STUDIOFLEET_MIXES", "12"))
EMBEDDED_MIXES = int(os.environ.get("STUDIOFLEET_EMBEDDED_MIXES", "2"))
SEED = int(os.environ.get("STUDIOFLEET_SEED", str(random.randrange(2**32))))
EOS = 2
SPECIAL = (EOS, 10)
TIE = 1e-3
"""Two candidates so near to one another may change places with the last digits of a sum."""
PREFIX_BYTES = 300_000
SLOTS = 4


@dataclass
class Ties:
    """How often the last digits decided."""

    requests: int = 0
    preemptions: int = 0
    found: list[float] = field(default_factory=list)


TIES = Ties()


@pytest.fixture(scope="module", autouse=True)
def told():
    print(f"\nSTUDIOFLEET_SEED={SEED}, {MIXES} mixes a vocabulary")
    yield
    compared = f"{TIES.requests} answers compared, {TIES.preemptions} preemptions"
    print(f"{compared}, {len(TIES.found)} ties {TIES.found}")
    assert len(TIES.found) <= max(1, TIES.requests // 100)


@pytest.fixture(scope="module")
def networks():
    return {size: random_model(size, sharpness=4.0) for size in (SMALL, LARGE)}


def settings_of(vocabulary: int) -> st.SearchStrategy[SamplingSettings]:
    plain = st.builds(SamplingSettings, temperature=st.just(0.0))
    anything = st.builds(
        SamplingSettings,
        temperature=st.sampled_from([0.0, 0.5, 1.0, 1.5]),
        top_p=st.sampled_from([1.0, 0.5, 0.95]),
        top_k=st.sampled_from([0, 1, 20]),
        min_p=st.sampled_from([0.0, 0.05]),
        seed=st.integers(0, 2**64 - 1),
        xtc_probability=st.sampled_from([0.0, 0.5]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
        repetition_context_size=st.sampled_from([0, 5]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        frequency_penalty=st.sampled_from([0.0, 0.3]),
        logit_bias=st.sampled_from([(), ((5, 3.0), (EOS, 2.0)), ((vocabulary - 1, -100.0),)]),
        min_tokens=st.sampled_from([0, 3]),
        logprobs=st.sampled_from([None, 0, 3]),
    )
    free = st.builds(
        SamplingSettings, temperature=st.sampled_from([0.8, 1.2]), seed=st.integers(0, 2**64 - 1)
    )
    return plain | free | anything | anything


@dataclass(frozen=True)
class Request:
    """One request of a mix: what it asks, when it comes, and what becomes of it."""

    settings: SamplingSettings
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int
    abort_after: int | None
    known: int
    """So many tokens were emitted before, elsewhere."""

    def sequence(self, emitted: list[int] | None = None) -> Sequence:
        stop_ids, nobody = frozenset([EOS]), (lambda event: None)
        prompt = list(self.prompt)
        return Sequence(
            "r", prompt, self.max_tokens, self.settings, stop_ids, nobody, emitted=list(emitted or ())
        )


def requests_of(vocabulary: int) -> st.SearchStrategy[list[Request]]:
    ids = st.integers(0, vocabulary - 1)
    beginning = [(7 * i) % vocabulary for i in range(40)]
    prompts = st.lists(ids, min_size=1, max_size=30).map(tuple) | st.integers(1, 40).map(
        lambda cut: (*beginning[:cut], cut)
    )
    one = st.builds(
        Request,
        settings=settings_of(vocabulary),
        prompt=prompts,
        max_tokens=st.integers(1, 14),
        arrival=st.integers(0, 15),
        abort_after=st.none() | st.none() | st.integers(0, 12),
        known=st.just(0) | st.integers(0, 12),
    )
    return st.lists(one, min_size=3, max_size=9)


def alone(network: Any, request: Request) -> list[int]:
    batch = Batch(BatchSampler(network, SPECIAL), 1, PrefixCache(0))
    sequence = request.sequence()
    batch.add(sequence)
    while batch.has_work:
        errors = [event.error for _, event in batch.step() if event.error]
        assert not errors
    batch.close()
    return sequence.emitted


@dataclass(frozen=True)
class Shortage:
    """When memory runs out, by steps, and how many tokens the rows may hold together."""

    moments: frozenset[int]
    kv_tokens: int | None


shortages = st.builds(
    Shortage,
    moments=st.frozensets(st.integers(0, 40), max_size=12),
    kv_tokens=st.none() | st.integers(20, 150),
)


class Memory:
    """Short in the steps that are named."""

    def __init__(self, moments: frozenset[int]) -> None:
        self._moments = moments
        self.step = 0

    def read(self) -> MemoryReading:
        used = 99 if self.step in self._moments else 10
        return MemoryReading(used, 0, used, used, limit=100)

    def give_back(self) -> None:
        pass


def together(
    network: Any, mix: list[Request], whole: list[list[int]], prefixes: PrefixCache, shortage: Shortage
):
    """The answers of a mix. None for those that were aborted."""
    batch = Batch(BatchSampler(network, SPECIAL), SLOTS, prefixes, kv_tokens=shortage.kv_tokens)
    memory = Memory(shortage.moments)
    guard = Guard(memory, batch.clear_prefixes, lambda: float(memory.step))
    sequences = [
        request.sequence(answer[: request.known]) for request, answer in zip(mix, whole, strict=True)
    ]
    over = {i for i, answer in enumerate(whole) if mix[i].known >= len(answer)}
    aborted: set[int] = set()
    came: dict[int, int] = {}
    step = 0
    while batch.has_work or len(came) + len(over) < len(mix):
        for i, request in enumerate(mix):
            if i not in over and i not in came and request.arrival <= step:
                batch.add(sequences[i])
                came[i] = step
            late = i in came and request.abort_after is not None and step - came[i] >= request.abort_after
            if late and i not in aborted and not is_over(sequences[i]):
                aborted.add(i)
                batch.remove(sequences[i])
        for _, event in batch.step():
            assert event.error is None
            assert (event.token is None) == (event.likelihood is None)
        memory.step = step = step + 1
        if guard.look() and batch.make_room() is not None:
            assert batch.running <= 1  # it would be ended; here it goes on
        assert step < 1000
    assert (batch.running, batch.prefill_tokens) == (0, 0)
    assert batch._rows._generator.prompt_cache_nbytes == 0
    assert prefixes.stats()["prefix_cache_bytes"] <= PREFIX_BYTES
    TIES.preemptions += batch.preemptions
    batch.close()
    return [None if i in aborted else each.emitted for i, each in enumerate(sequences)]


def is_over(sequence: Sequence) -> bool:
    return len(sequence.emitted) == sequence.max_tokens or sequence.emitted[-1:] == [EOS]


def lead(network: Any, request: Request, answer: list[int], place: int) -> float:
    """By how much the token at that place won when its request ran alone."""
    ids = [*request.prompt, *answer[:place]]
    logits = network(mx.array([ids]))[:, -1, :]
    changed = adjusted(logits, [history_of(request.settings, [EOS], request.prompt, answer[:place])])
    logprobs = np.array(changed - mx.logsumexp(changed, axis=-1, keepdims=True))[0]
    return float(reference(logprobs, request.settings, place, SPECIAL)[1])


def check(network: Any, mix: list[Request], shortage: Shortage) -> None:
    whole = [alone(network, request) for request in mix]
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    for prefixes in (PrefixCache(0), PrefixCache(PREFIX_BYTES)):
        for _again in range(2):  # the second time with warm prefixes
            found = together(network, mix, whole, prefixes, shortage)
            for request, answer, expected in zip(mix, found, whole, strict=True):
                if answer is None:
                    continue
                TIES.requests += 1
                if answer != expected:
                    pairs = zip([*answer, None], [*expected, None], strict=False)
                    place = next(i for i, (a, b) in enumerate(pairs) if a != b)
                    margin = lead(network, request, expected, place)
                    assert margin < TIE, (request, place, answer, expected)
                    TIES.found.append(margin)
        prefixes.clear()
    gc.collect()
    mx.clear_cache()
    assert mx.get_active_memory() <= before


def hold(network: Any, vocabulary: int, count: int) -> None:
    """Try so many mixes on that network."""

    @seeded(SEED)
    @profile(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(requests_of(vocabulary), shortages)
    def mixes(mix: list[Request], shortage: Shortage) -> None:
        check(network, mix, shortage)

    mixes()


@pytest.mark.timeout(600 + 60 * MIXES)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_each_answer_of_a_mix_is_the_one_that_its_request_gets_alone(networks, size):
    """Also what was continued or preempted, warm and cold; and no row, cache or byte is left over."""
    hold(networks[size], size, MIXES)


@pytest.mark.timeout(600 + 600 * EMBEDDED_MIXES)
def test_so_it_is_on_the_embedded_model(models):
    loader = Loader(None, models, None)
    for _piece in loader.pieces():
        pass
    assert loader.result is not None
    hold(loader.result.network, 49152, EMBEDDED_MIXES)
