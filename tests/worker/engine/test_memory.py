"""Readings of memory, and what follows from them."""

import ctypes
import sys
import tomllib
from pathlib import Path

import pytest

from worker.engine.base import EngineBusy
from worker.engine.guard import Guard, Pressure, pressure
from worker.engine.memory import MemoryReading, RusageInfo, footprint_reader

REPORTS = tomllib.loads((Path(__file__).parent / "mac_memory.toml").read_text())["reports"]
MIB = 1 << 20


def reading(active=0, cache=0, footprint=0, limit=100):
    return MemoryReading(active * MIB, cache * MIB, active * MIB, footprint * MIB, limit * MIB)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ({"active": 84}, Pressure.NONE),
        ({"active": 85}, Pressure.SOFT),
        ({"active": 60, "cache": 25}, Pressure.SOFT),
        ({"active": 60, "footprint": 94}, Pressure.SOFT),
        ({"active": 20, "footprint": 95}, Pressure.HARD),
        ({"active": 200}, Pressure.HARD),
    ],
)
def test_pressure_follows_the_larger_account(taken, expected):
    assert pressure(reading(**taken)) is expected


def test_a_footprint_that_mlx_does_not_see_counts():
    """As reported of Macs."""
    accounts, machine = REPORTS
    footprint, limit = accounts["footprint"], machine["limit"]
    seen = MemoryReading(accounts["peak"], 0, accounts["peak"], footprint, limit)
    assert pressure(seen) is Pressure.HARD
    assert accounts["peak"] / limit < 0.5


def test_the_limit_of_a_mac_is_less_than_its_memory():
    assert 0.83 < REPORTS[1]["limit"] / REPORTS[1]["memsize"] < 0.85


class FakeMemory:
    """Gives the readings in turn, the last for ever; giving back takes the next."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.given_back = 0

    def read(self):
        return self.readings[0]

    def give_back(self):
        self.given_back += 1
        if len(self.readings) > 1:
            del self.readings[0]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def guard(*readings):
    memory, clock = FakeMemory(*readings), Clock()
    dropped: list[None] = []
    return Guard(memory, lambda: dropped.append(None), clock), memory, dropped, clock


def test_without_pressure_nothing_is_touched():
    watch, memory, dropped, _ = guard(reading(active=50))
    assert not watch.look()
    watch.check()
    assert (memory.given_back, dropped) == (0, [])


def test_what_is_only_kept_goes_first():
    watch, memory, dropped, _ = guard(reading(active=50, cache=40), reading(active=50))
    assert not watch.look()
    watch.check()
    assert (memory.given_back, dropped) == (1, [])


def test_under_soft_pressure_nothing_new_is_taken():
    watch, _, dropped, _ = guard(reading(active=90))
    assert not watch.look()
    with pytest.raises(EngineBusy, match="memory is short: 90 of 100 MiB are taken"):
        watch.check()
    assert dropped == []


def test_prefixes_go_before_a_request_does():
    watch, _, dropped, _ = guard(reading(active=99), reading(active=97), reading(active=70))
    assert not watch.look()
    assert len(dropped) == 1


def test_under_hard_pressure_a_request_has_to_go_and_its_memory_may_come_free_before_the_next():
    watch, memory, _, clock = guard(reading(active=99))
    assert watch.look()
    assert not watch.look()
    clock.now += 1
    assert watch.look()
    memory.readings = [reading(active=10)]
    clock.now += 1
    assert not watch.look()
    watch.check()


def test_the_footprint_of_this_process_is_read():
    assert 1 << 20 < footprint_reader(sys.platform)() < 1 << 40


def test_the_structure_of_the_mac_is_laid_out_as_in_its_header():
    """Of rusage_info_v0, in <sys/resource.h> of macOS: a uuid, then ten numbers of 64 bits."""
    assert ctypes.sizeof(RusageInfo) == 16 + 10 * 8
    assert RusageInfo.ri_phys_footprint.offset == 16 + 7 * 8
