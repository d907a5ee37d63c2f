"""The fluid engine against what can be reckoned by hand."""

from __future__ import annotations

import pytest

from scripts.simulation.clock import Clock
from scripts.simulation.engine import Engine, Job, PrefixCache, Speed


class Bench:
    """An engine of two slots: 10 tokens a second alone, 100 of a prompt."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ends: dict[str, float] = {}
        self.engine = Engine(
            self.clock,
            Speed(decode=10.0, prefill=100.0),
            slots=2,
            entered=lambda _job: None,
            begun=lambda _job: 100,
            computed=lambda _job: None,
            done=self._done,
        )

    def add(self, name: str, answer: int, resumed: int = 0) -> Job:
        job = Job(("gw", name, 0), answer, resumed=resumed)
        self.engine.add(job)
        return job

    def _done(self, job: Job) -> None:
        self.ends[job.key[1]] = self.clock.now


def test_one_stream_takes_its_prompt_and_its_tokens():
    bench = Bench()
    bench.add("a", 10)
    bench.clock.run(100.0)
    assert bench.ends == {"a": pytest.approx(1.0 + 10 * (1 + 1 / 16) / 10)}


def test_two_slow_each_other_down_and_a_third_waits():
    bench = Bench()
    for name in "abc":
        bench.add(name, 10)
    bench.clock.run(2.9)
    assert list(bench.ends) == []
    bench.clock.run(100.0)
    assert list(bench.ends) == ["a", "b", "c"]
    assert bench.ends["a"] > 1.0 + 10 * (1 + 1 / 16) / 10


def test_what_is_removed_makes_room_and_what_is_resumed_is_shorter():
    bench = Bench()
    first, _second = bench.add("a", 1000), bench.add("b", 1000)
    bench.add("c", 10, resumed=5)
    bench.clock.run(5.0)
    made = bench.engine.made(first)
    assert 0 < made < 40
    bench.engine.remove(first)
    bench.clock.run(20.0)
    assert list(bench.ends) == ["c"]


def test_an_engine_that_stands_still_makes_nothing():
    bench = Bench()
    job = bench.add("a", 10)
    bench.clock.run(1.5)
    bench.engine.stand_still()
    made = bench.engine.made(job)
    bench.clock.run(50.0)
    assert bench.engine.made(job) == made
    bench.engine.go_on()
    bench.clock.run(52.0)
    assert list(bench.ends) == ["a"]


def test_the_least_recently_used_beginning_goes_first():
    cache = PrefixCache(250)
    for key in "ab":
        cache.keep(key, 100)
    assert cache.find("a") == 100
    cache.keep("c", 100)
    assert [cache.find(key) for key in "abc"] == [100, 0, 100]
    cache.keep("a", 250)
    assert [cache.find(key) for key in "abc"] == [250, 0, 0]
