"""How long prompts that come to an idle engine wait for others."""

from __future__ import annotations

import asyncio

import pytest

from worker.engine.gathering import LONGEST_S, SHARE, Gathering, patience_s
from worker.engine.sequence import Sequence
from worker.engine.settings import SamplingSettings

PATIENT = 1e-3
"""Tokens per second at which the longest wait is due."""


@pytest.mark.parametrize(
    ("lengths", "rate", "expected"),
    [
        ([40], 100.0, SHARE * 0.4),
        ([40, 60], 100.0, SHARE * 1.0),
        ([40], 10_000.0, SHARE * 0.004),
        ([40], PATIENT, LONGEST_S),
        ([40], 0.0, 0.0),  # nothing was measured yet
        ([400], 100.0, 0.0),  # no other would be read with it
        ([40] * 4, 100.0, 0.0),  # all places are taken
    ],
)
def test_a_small_share_of_the_reading_is_waited_for_others(lengths, rate, expected):
    assert patience_s(lengths, rate, places=4) == pytest.approx(expected)


def sequence(length: int = 40) -> Sequence:
    return Sequence("r", [1] * length, 8, SamplingSettings(), frozenset(), lambda event: None)


def gathered(work) -> list[list[Sequence]]:
    """What was handed over, by time, while `work` went on."""
    groups: list[list[Sequence]] = []

    async def main():
        gathering = Gathering(groups.append, places=4)
        await work(gathering)
        async with asyncio.timeout(20):
            while len(gathering):
                await asyncio.sleep(0.01)

    asyncio.run(main())
    return groups


def test_those_that_come_nearly_together_go_together():
    first, second = sequence(), sequence()

    async def work(gathering):
        gathering.add(first, PATIENT, idle=True)
        gathering.add(second, PATIENT, idle=True)
        assert len(gathering) == 2

    assert gathered(work) == [[first, second]]


def test_what_comes_to_a_busy_engine_goes_at_once_and_takes_along_who_waits():
    first, second = sequence(), sequence()

    async def work(gathering):
        gathering.add(first, PATIENT, idle=True)
        gathering.add(second, PATIENT, idle=False)
        assert len(gathering) == 0

    assert gathered(work) == [[first, second]]


def test_one_that_is_removed_is_not_handed_over():
    first, second = sequence(), sequence()

    async def work(gathering):
        gathering.add(first, PATIENT, idle=True)
        gathering.add(second, PATIENT, idle=True)
        assert gathering.remove(first)
        assert not gathering.remove(first)

    assert gathered(work) == [[second]]
