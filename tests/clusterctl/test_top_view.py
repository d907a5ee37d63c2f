import re
from pathlib import Path

from rich.console import Console

from clusterctl.admin import Failure, QueueView, WorkerView
from clusterctl.status_view import status_view
from clusterctl.top_view import Speeds, load_bar, spark, top_view, totals
from tests.clusterctl.test_status import picture, process

BUSY = WorkerView(
    id="w",
    model="m",
    state="ready",
    pid=7,
    running=4,
    waiting=1,
    max_num_seqs=16,
    max_waiting=2,
    resident_mb=2048,
    memory_mb=4096,
    decode_tokens_per_s=123.44,
    first_token_s=0.21,
    rejected=3,
    breaker="closed",
    heartbeat_age_s=0.4,
)


def drawn(picture, width=200):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(picture)
    return capture.get()


def top(status, failures=(), speeds=(), width=200):
    return drawn(top_view(status, failures, {"w": speeds}, width), width)


def busy(**changes):
    return picture(process("g"), process("w", restarts=2), workers=(BUSY,), **changes)


def test_the_facts_of_the_dashboard_are_shown():
    shown = top(busy(), speeds=(0.0, 60.0, 120.0))
    for fact in ("http://127.0.0.1:1", "4/16", "1/2", "123.4", "▁▅█", "210 ms", "2.0 GB of 4.0 GB", "400 ms"):
        assert fact in shown


def test_the_first_line_is_of_the_whole_fleet():
    assert (
        totals(busy()) == "1 of 1 workers ready · 4 running · 1 waiting · 123.4 tokens/s · 2.0 GB of models"
    )


def test_a_worker_without_requests_has_no_speed_whatever_it_said_last():
    idle = WorkerView(id="w", state="ready", pid=7, decode_tokens_per_s=99.0)
    assert "0.0 tokens/s" in totals(picture(process("g"), process("w"), workers=(idle,)))


def test_a_narrow_terminal_shows_less_and_breaks_no_line():
    lines = top(busy(), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    workers = next(place for place, line in enumerate(lines) if line.startswith("worker "))
    assert "model" not in lines[workers]
    assert lines[workers + 1].startswith("w ")
    assert "210 ms" in lines[workers + 1]


def test_the_page_says_how_wide_a_terminal_shows_nodes():
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    found = re.search(r"its node \(in a terminal of (\d+) columns\)", page)
    assert found
    assert " node " in top(busy(), width=int(found[1]))
    assert " node " not in top(busy(), width=int(found[1]) - 1)


def test_failed_requests_are_told_the_newest_first_and_not_more_than_five():
    failed = [Failure(id=f"req-{n}", model="m", code="timeout", age_s=70 * n) for n in range(9)]
    lines = top(busy(), failed).splitlines()
    told = lines[lines.index("requests that failed:") + 1 :]
    assert told[0] == "  timeout: m, req-0, 0 s ago"
    assert told[1] == "  timeout: m, req-1, 1 min ago"
    assert len(told) == 5


def test_what_is_wrong_stands_in_both_pictures():
    status = picture(
        process("g"),
        process("w", phase="parked", pid=None, last_error="no memory"),
        queues=(QueueView(model="m", waiting=2),),
    )
    for shown in (top(status), drawn(status_view(status))):
        assert "w: no memory" in shown
        assert "clusterctl restart w" in shown
        assert "waiting in the queue: m: 2" in shown


def test_what_a_worker_says_cannot_move_the_readers_cursor():
    says = WorkerView(id="w", state="failed", pid=7, last_error="it\x1b[2J\x9b2J broke")
    state = picture(process("g"), process("w"), workers=(says,))
    for shown in (top(state), drawn(status_view(state), 200)):
        assert "it[2J2J broke" in shown
        assert "\x9b" not in shown
        assert "\x1b[2J" not in shown


def test_a_bar_is_never_empty_while_something_runs_nor_longer_than_it_may_be():
    assert load_bar(0, 16) == "░░░░░░░░ 0/16"
    assert load_bar(1, 64) == "█░░░░░░░ 1/64"
    assert load_bar(16, 16) == load_bar(99, 16).replace("99", "16") == "████████ 16/16"
    assert load_bar(None, None) == "░░░░░░░░ -"


def test_speeds_of_workers_that_are_gone_are_forgotten_and_old_ones_too():
    speeds = Speeds()
    for _ in range(40):
        speeds.add(busy().workers)
    assert list(speeds.by_worker["w"]) == [123.44] * 16
    speeds.add(())
    assert speeds.by_worker == {}


def test_a_spark_of_nothing_is_nothing():
    assert spark(()) == spark((0.0, 0.0)) == ""
