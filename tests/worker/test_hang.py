import pytest

from worker.hang import HangWatch

BEAT_S = 0.5


def looked_at(watch: HangWatch, ages, now: float = 0.0) -> float:
    """A look each beat; when the last one was."""
    for age_s in ages:
        now += BEAT_S
        watch.look(age_s, now)
    return now


def standing(seconds: float):
    """The ages of one step that takes so long."""
    return [BEAT_S * count for count in range(1, int(seconds / BEAT_S) + 1)]


def test_an_engine_that_has_nothing_to_do_never_hangs():
    watch = HangWatch(30.0, 0.0)
    looked_at(watch, [0.0] * 1000)
    assert (watch.why, watch.age_s) == ("", 0.0)


def test_an_engine_that_steps_never_hangs():
    watch = HangWatch(30.0, 0.0)
    looked_at(watch, [0.02] * 1000)
    assert (watch.why, watch.age_s) == ("", 0.02)


def test_one_step_that_takes_too_long_is_told_with_the_cure():
    watch = HangWatch(30.0, 0.0)
    now = looked_at(watch, [0.02, 0.01, *standing(29.5)])
    assert watch.why == ""
    watch.look(30.0, now + BEAT_S)
    assert watch.why.startswith("the engine hangs: it has work and made no step for 30 s")
    assert "step_stall_s" in watch.why


def test_an_engine_whose_steps_take_long_may_take_five_times_as_long():
    watch = HangWatch(30.0, 0.0)
    now = looked_at(watch, standing(10.0) * 5)
    assert watch.limit_s == pytest.approx(50.0)
    now = looked_at(watch, standing(49.5), now)
    assert watch.why == ""
    watch.look(50.0, now + BEAT_S)
    assert watch.why


def test_one_slow_step_among_many_buys_no_time():
    watch = HangWatch(30.0, 0.0)
    looked_at(watch, [*standing(20.0), *[0.02] * 200])
    assert watch.limit_s == 30.0


def test_a_hang_does_not_lengthen_its_own_limit():
    watch = HangWatch(1.0, 0.0)
    looked_at(watch, standing(60.0))
    assert watch.limit_s == 1.0


@pytest.mark.parametrize("asleep_s", [60.0, 86_400.0])
def test_time_in_which_the_process_was_stopped_does_not_count(asleep_s: float):
    watch = HangWatch(30.0, 0.0)
    now = looked_at(watch, [0.02, 0.02])
    now += asleep_s
    watch.look(asleep_s, now)
    assert watch.why == ""
    looked_at(watch, [asleep_s + age for age in standing(25.0)], now)
    assert watch.why == ""
    watch.look(asleep_s + 40.0, now + 40.0)
    assert watch.why == ""
    looked_at(watch, [asleep_s + 40.0 + age for age in standing(2.0)], now + 40.0)
    assert watch.why
