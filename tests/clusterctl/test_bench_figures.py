import pytest
from rich.console import Console

from clusterctl.bench_figures import Percentiles, Sample, figures, level, percentiles
from clusterctl.bench_view import bench_view


def sample(began=0.0, *pieces, **changes):
    values = {"ended": (pieces or (began,))[-1], "tokens": len(pieces), "worker": "w-1", "prompt_tokens": 7}
    return Sample(began=began, pieces=pieces, **(values | changes))


def test_a_percentile_is_one_of_the_values_and_not_better_than_that_many_had():
    assert percentiles(range(1, 101)) == Percentiles(p50=50, p95=95, p99=99)
    assert percentiles([3.0]) == Percentiles(p50=3.0, p95=3.0, p99=3.0)
    assert percentiles([1.0, 2.0]) == Percentiles(p50=1.0, p95=2.0, p99=2.0)
    assert percentiles([]) is None


def test_of_speeds_the_slow_ones_are_the_bad_ones():
    assert percentiles(range(1, 101), great_is_good=True) == Percentiles(p50=51, p95=6, p99=2)


def test_times_and_speed_of_a_request():
    one = sample(10.0, 10.5, 10.75, 11.0, tokens=5)
    assert one.first_token_s == 0.5
    assert one.gaps_s == [0.25, 0.25]
    assert one.tokens_per_s == pytest.approx(4 / 0.5)


@pytest.mark.parametrize("one", [sample(0.0), sample(0.0, 1.0), sample(0.0, 1.0, 1.0, tokens=9)])
def test_an_answer_that_came_at_once_has_no_speed(one):
    assert one.tokens_per_s is None


def test_failed_requests_are_counted_by_kind_and_in_no_time():
    failed = [
        sample(0.0, 9.0, error="cut_off"),
        sample(0.0, error="queue_timeout", worker=""),
        sample(0.0, error="cut_off"),
    ]
    found = figures([sample(0.0, 1.0, 2.0), *failed])
    assert (found.requests, found.failed) == (4, 3)
    assert found.errors == {"cut_off": 2, "queue_timeout": 1}
    assert (found.tokens, found.first_token_s) == (2, percentiles([1.0]))


def test_a_level_has_what_all_were_served_together_and_each_worker_alone():
    of_two = [
        sample(0.0, 1.0, 2.0),
        sample(1.0, 3.0, 5.0, worker="w-2"),
        sample(1.0, error="lost", worker=""),
    ]
    found = level(2, of_two)
    assert (found.seconds, found.tokens_per_s) == (5.0, 4 / 5)
    assert found.prompt_tokens == 7
    assert {worker: each.requests for worker, each in found.workers.items()} == {"w-1": 1, "w-2": 1}
    assert found.workers["w-2"].first_token_s == percentiles([2.0])


def test_a_level_without_requests_has_no_figures():
    found = level(4, [], cut_short=True)
    assert (found.seconds, found.tokens_per_s, found.total.first_token_s, found.workers) == (
        0.0,
        0.0,
        None,
        {},
    )


def test_the_tables_tell_of_levels_workers_and_failures():
    levels = [level(1, [sample(0.0, 0.25, 0.5)]), level(4, [sample(0.0, error="cut_off")], cut_short=True)]
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(bench_view(levels, {"cut_off": "no end"}))
    shown = capture.get()
    assert "250/250/250 ms" in shown
    assert shown.count("w-1") == 2
    assert "4 at once: 1 failed, cut_off: no end" in shown
    assert "4 at once: cut short" in shown
