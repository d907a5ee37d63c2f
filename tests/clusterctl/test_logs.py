import json
from datetime import UTC, datetime

import pytest

from clusterctl.logs import Choice, Entry, Parser, TimeError, concerns, merged, moment

NOW = datetime(2026, 1, 31, 22, 40)


def entries(*lines, process_id="w"):
    parser = Parser(process_id)
    found = [parser.line(line) for line in lines]
    return [entry for entry in [*found, parser.rest(NOW)] if entry is not None]


def at(second, process_id="w", message="m"):
    return Entry(process_id, datetime(2026, 1, 31, 22, 0, second), "INFO", "x", message)


def test_a_line_is_taken_apart():
    found = entries("2026-01-31 22:00:01,250 WARNING worker.link lost gateway gw-1: it broke")
    time = datetime(2026, 1, 31, 22, 0, 1, 250_000)
    assert found == [Entry("w", time, "WARNING", "worker.link", "lost gateway gw-1: it broke")]


def test_a_traceback_belongs_to_the_line_before_it():
    found = entries(
        "2026-01-31 22:00:01,000 ERROR worker failed",
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        "2026-01-31 22:00:02,000 INFO worker goes on",
    )
    assert [entry.message.split("\n")[0] for entry in found] == ["failed", "goes on"]
    assert found[0].message.endswith('\n  File "x.py", line 1')


def test_words_before_any_time_stamp_have_the_next_one_or_that_of_the_file():
    found = entries("python: no such module", "2026-01-31 22:00:01,000 INFO worker starts")
    assert [entry.time for entry in found] == [datetime(2026, 1, 31, 22, 0, 1)] * 2
    assert entries("python: no such module")[0].time == NOW


def test_a_log_cannot_move_the_readers_cursor():
    assert entries("2026-01-31 22:00:01,000 INFO worker a\x1b[2Jb\x07c")[0].message == "a[2Jbc"


def test_a_line_for_programs_is_an_entry_as_well():
    line = {
        "time": "2026-01-31T22:00:01.250Z",
        "level": "ERROR",
        "logger": "worker",
        "message": "a\x1b[2Jb",
        "pid": 7,
    }
    found = entries(json.dumps(line), json.dumps({**line, "exception": "Traceback\n  File"}), "{no object")
    time = datetime(2026, 1, 31, 22, 0, 1, 250_000, UTC).astimezone().replace(tzinfo=None)
    assert found == [
        Entry("w", time, "ERROR", "worker", "a[2Jb"),
        Entry("w", time, "ERROR", "worker", "a[2Jb\nTraceback\n  File\n{no object"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "2026-13-45 22:00:01,000 INFO worker no month",
        '{"time": "0001-01-01T00:00:00+14:00", "level": "INFO", "logger": "worker", "message": "too early"}',
    ],
)
def test_a_line_with_an_impossible_time_belongs_to_the_entry_before_it(line):
    found = entries("2026-01-31 22:00:01,000 INFO worker a", line, "2026-01-31 22:00:02,000 INFO worker b")
    assert [entry.message for entry in found] == [f"a\n{line}", "b"]


def test_logs_are_merged_by_time():
    one, two = [at(1, "a"), at(4, "a")], [at(2, "b"), at(3, "b")]
    assert [entry.time.second for entry in merged([one, two], Choice(), None)] == [1, 2, 3, 4]
    assert [entry.time.second for entry in merged([one, two], Choice(), 2)] == [3, 4]
    assert list(merged([one, two], Choice(), 0)) == []


def test_only_the_young_and_only_one_request_are_shown_when_asked_for():
    log = [at(1, message="request req-1: a"), at(2, message="request req-1: b"), at(3, message="c")]
    chosen = Choice(since=datetime(2026, 1, 31, 22, 0, 2), request="req-1")
    assert [entry.message for entry in merged([log], chosen, None)] == ["request req-1: b"]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("request req-1: done", True),
        ("request req-1.ab12cd34: given up", True),
        ("request req-12: done", False),
        ("request my-req-1: done", False),
        ("request req-1-2: done", False),
    ],
)
def test_a_request_is_found_by_its_whole_id(message, found):
    assert concerns(at(1, message=message), "req-1") is found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", datetime(2026, 1, 31, 22, 30)),
        ("1.5h", datetime(2026, 1, 31, 21, 10)),
        ("1 d", datetime(2026, 1, 30, 22, 40)),
        ("7:05", datetime(2026, 1, 31, 7, 5)),
        ("22:05:30", datetime(2026, 1, 31, 22, 5, 30)),
        ("2026-01-30", datetime(2026, 1, 30)),
        ("2026-01-30 12:00:01", datetime(2026, 1, 30, 12, 0, 1)),
    ],
)
def test_times_as_people_write_them(text, expected):
    assert moment(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "10", "10 weeks", "25:00", "2026-13-01", "-5m"),
        *("999999d", "99999999999d", "0001-01-01T00:00:00+14:00"),
    ],
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(TimeError):
        moment(text, NOW)


def test_a_time_with_a_zone_is_the_same_moment_here():
    here = datetime(2026, 1, 30, 12, 0).astimezone()
    assert moment(here.isoformat(), NOW) == datetime(2026, 1, 30, 12, 0)


def test_no_entry_is_lost_when_the_clock_is_set_back():
    """Entries of one process stay in their order; of the others, they stand where the clock says."""
    before = [at(second, "a") for second in (35, 36, 10, 11)]
    other = [at(second, "b") for second in (34, 9, 37)]
    found = list(merged([before, other], Choice(), None))
    assert [e for e in found if e.id == "a"] == before
    assert [e for e in found if e.id == "b"] == other
    assert len(list(merged([before, other], Choice(since=before[3].time), None))) == 5
