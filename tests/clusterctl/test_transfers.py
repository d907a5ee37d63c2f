"""How a transfer is told."""

from __future__ import annotations

import pytest

from clusterctl.transfers import Rate, span


def test_what_was_there_before_does_not_count_as_speed():
    rate = Rate(10_000_000_000)
    rate.note(100.0, 4_000_000_000)
    assert rate.words() == "4.0 GB of 10.0 GB"
    rate.note(110.0, 5_000_000_000)
    assert rate.words() == "5.0 GB of 10.0 GB, 100 MB/s, 50s left"


def test_the_speed_is_that_of_the_last_seconds():
    rate = Rate(1_000_000)
    for second in range(100):
        rate.note(float(second), min(second, 50) * 10_000)
    assert rate.per_s == 0.0
    assert rate.words() == "500.0 kB of 1.0 MB".replace("500.0", "500")


def test_other_things_than_bytes_are_counted_however_slow_they_are():
    rate = Rate(16, str)
    rate.note(0.0, 0)
    rate.note(10.0, 4)
    assert rate.words() == "4 of 16, 30s left"


def test_whole():
    rate = Rate(2000)
    rate.note(0.0, 0)
    rate.note(1.0, 2000)
    assert rate.words() == "2.0 kB of 2.0 kB, 2.0 kB/s"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0s"), (59.4, "59s"), (93, "1m 33s"), (3600, "1h 0m"), (-1, "0s")]
)
def test_a_time_in_words(seconds, words):
    assert span(seconds) == words
