"""A loop that stands still: what counts as standing, and that its process ends."""

from __future__ import annotations

import pytest

from protocol.config import parse
from protocol.config_errors import ConfigError
from protocol.watchdog import Standstill


def test_time_counts_while_the_count_is_the_same():
    standstill = Standstill(2.0, 100.0)
    assert [standstill.look(1, at) for at in (101.0, 102.0, 103.5)] == [0.0, 1.0, 2.5]


def test_each_beat_begins_anew():
    standstill = Standstill(2.0, 100.0)
    standstill.look(1, 101.0)
    standstill.look(1, 103.0)
    assert standstill.look(2, 104.0) == 0.0
    assert standstill.look(2, 105.0) == 1.0


def test_a_loop_that_never_beat_stands_still():
    assert Standstill(2.0, 100.0).look(0, 101.0) == 1.0


def test_a_machine_that_slept_saw_nothing_of_it():
    standstill = Standstill(2.0, 100.0)
    standstill.look(1, 101.0)
    assert standstill.look(1, 5000.0) == 2.0


def test_a_limit_shorter_than_the_beats_is_refused():
    text = 'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n'
    with pytest.raises(ConfigError, match="loop_stall_s = 3 has to be twice interval_s = 2"):
        parse(text + "[heartbeat]\ninterval_s = 2\nloop_stall_s = 3\n")
