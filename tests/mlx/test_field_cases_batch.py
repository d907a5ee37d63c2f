"""Faults of batching that others met in the field, in the batch of a small random model."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tests.mlx.random_model import SMALL as VOCABULARY
from tests.mlx.random_model import random_model
from tests.mlx.test_batch import POISON
from tests.mlx.test_batch import make as faulty
from worker.engine.prefill import pieces
from worker.engine.sequence import Event, Sequence
from worker.engine.settings import SamplingSettings

pytest.importorskip("mlx.core", reason="mlx is not installed")

from worker.engine.batch import Batch
from worker.engine.batch_sampler import BatchSampler
from worker.engine.prefix_cache import PrefixCache

MIXED: dict[str, dict[str, Any]] = {
    "R1": {},
    "R2": {"logit_bias": ((5, -100.0),)},
    "R3": {"repetition_penalty": 1.1},
    "R4": {"frequency_penalty": 0.5},
}
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def network():
    return random_model(VOCABULARY, sharpness=4.0)


def make(network, slots=8):
    return Batch(BatchSampler(network), slots, PrefixCache(0), lambda: 0.0)


def request(name: str, length: int = 12, max_tokens: int = 64, **settings) -> Sequence:
    prompt = [(7 * ord(name[-1]) + 11 * i + i * i) % VOCABULARY for i in range(length)]
    greedy = SamplingSettings(temperature=0.0, **settings)
    return Sequence(name, prompt, max_tokens, greedy, frozenset(), lambda event: None)


def run(batch, owner: Sequence | None = None) -> list[Event]:
    """Until all are done; the tokens of the owner."""
    events = []
    while batch.has_work:
        for sequence, event in batch.step():
            assert event.error is None
            if sequence is owner and event.token is not None:
                events.append(event)
    return events


def alone(network, sequence: Sequence) -> list[Event]:
    batch = make(network)
    batch.add(sequence)
    return run(batch, sequence)


# FC-06: mixed sampler options in one batch crash the loop
@pytest.mark.parametrize("apart", [0, 4])
def test_fc_06_all_orders_of_mixed_settings_join_and_leave_one_batch(network, apart):
    expected = {
        name: [event.token for event in alone(network, request(name, **settings))]
        for name, settings in {**MIXED, "R5": {}}.items()
    }
    for order in permutations(MIXED):
        batch = make(network)
        # Those that come later end earlier, so that they leave at different steps too.
        sequences = [
            request(name, max_tokens=64 - 9 * place, **MIXED[name]) for place, name in enumerate(order)
        ]
        for sequence in sequences:
            batch.add(sequence)
            for _ in range(apart):
                batch.step()
        run(batch)
        plain = request("R5")
        batch.add(plain)
        run(batch)
        for sequence in [*sequences, plain]:
            assert sequence.emitted == expected[sequence.request_id][: sequence.max_tokens]


# FC-48: prefill starves decode
def test_fc_48_streams_go_on_while_long_prompts_are_read_one_after_the_other(network):
    longest = 2000
    batch, stream = make(network), request("A", max_tokens=1000)
    batch.add(stream)
    while len(stream.emitted) < 5:
        batch.step()
    for name in ("B1", "B2", "B3", "B4", "B5"):
        long, steps = request(name, longest, max_tokens=1), 0
        batch.add(long)
        batch.step()
        while not long.emitted:
            budget = pieces(batch.prefill_rate.value, decoding=True)
            had, unread = len(stream.emitted), batch.prefill_tokens
            batch.step()
            steps += 1
            assert len(stream.emitted) == had + 1
            assert unread - batch.prefill_tokens <= (
                budget.of_one if unread > budget.of_whole else budget.of_whole  # the end comes at once
            )
        assert longest + steps <= 1.5 * longest  # tokens computed until its first, against alone
    batch.remove(stream)


@pytest.mark.parametrize("rate", [0.0, 50.0, 1000.0, 1e6])
def test_fc_48_a_piece_of_a_prompt_takes_a_quarter_of_a_second_at_most_its_end_one_or_both_are_tiny(rate):
    assert pieces(rate, decoding=True).of_one <= max(32, rate * 0.25)
    assert pieces(rate, decoding=True).of_whole <= max(128, rate)


# FC-86: answer depends on the neighbour's length
@pytest.mark.parametrize("length", [12, 200, 2000])
@pytest.mark.parametrize("joins", ["before", "during", "after"])
@pytest.mark.parametrize("leaves", ["first", "last"])
def test_fc_86_an_answer_does_not_depend_on_its_neighbours_length(network, length, joins, leaves):
    expected = alone(network, request("X", 12, 30, logprobs=1))
    batch, asked = make(network), request("X", 12, 30, logprobs=1)
    neighbour = request("N", length, 10 if leaves == "first" else 60)
    events: list[Event] = []

    def step(until) -> None:
        while not until():
            events.extend(e for owner, e in batch.step() if owner is asked and e.token is not None)

    if joins == "before":
        batch.add(neighbour)
        step(lambda: bool(neighbour.emitted))
    batch.add(asked)
    if joins == "during":
        batch.add(neighbour)
    if joins == "after":
        step(lambda: len(asked.emitted) >= 3)
        batch.add(neighbour)
    step(lambda: not batch.has_work)
    assert [event.token for event in events] == [event.token for event in expected]
    for event, other in zip(events, expected, strict=True):
        assert event.likelihood is not None
        assert other.likelihood is not None
        assert event.likelihood.logprob == pytest.approx(other.likelihood.logprob, abs=TOLERANCE)
        assert event.likelihood.top[0][1] == pytest.approx(other.likelihood.top[0][1], abs=TOLERANCE)
    again = request("X", 12, 30, logprobs=1)
    batch.add(again)  # the batch was empty and fills again
    run(batch)
    assert again.emitted == asked.emitted


# FC-05: one raised error becomes a hot error loop
def test_fc_05_a_request_that_fails_every_step_is_ended_alone_with_few_words(network, caplog):
    batch = faulty(network)
    bad = request("bad")
    bad.prompt[3] = POISON
    clean = [request("R1"), request("R2")]
    for each in clean:
        each.prompt[:] = [token % POISON for token in each.prompt]
        batch.add(each)
    batch.add(bad)
    errors, steps = {}, 0
    while batch.has_work:
        steps += 1
        errors.update({owner.request_id: event.error for owner, event in batch.step() if event.error})
        assert steps < 300
    assert set(errors) == {"bad"}
    assert [len(each.emitted) for each in clean] == [64, 64]
    assert 0 < len(caplog.records) <= 4  # one a failed step
