"""Lines of a log, faults that repeat, and files that do not grow without bound."""

import json
import logging
import subprocess
import sys

import pytest

from protocol.logs import Repeats, formatter, message_of, rotate


def record(message, *args, level=logging.INFO, **more):
    made = logging.LogRecord("gateway.x", level, __file__, 1, message, args, None)
    made.__dict__.update(more)
    return made


def as_json(made):
    return json.loads(formatter("json", "gw-1", terminal=False).format(made))


def test_a_json_line_has_the_fields_that_programs_look_for():
    line = as_json(record("request %s: %d", "r-1", 7, fields={"status": 200}))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "logger": "gateway.x",
        "message": "request r-1: 7",
        "process": "gw-1",
        "request_id": "r-1",
        "status": 200,
    }


def test_a_line_that_concerns_no_request_names_none():
    assert "request_id" not in as_json(record("worker %s is ready", "w-1"))


def test_a_json_line_holds_its_traceback():
    try:
        raise KeyError("x")
    except KeyError:
        line = as_json(record("it failed", exc_info=sys.exc_info()))
    assert line["exception"].endswith("KeyError: 'x'")


def test_a_terminal_gets_text_whatever_is_configured():
    assert formatter("json", "gw-1", terminal=True).format(record("hello")).endswith("INFO gateway.x hello")


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_others_said_cannot_begin_a_line(form):
    made = record("they said %s", "a\n2026-01-01 00:00:00,000 ERROR x forged\x1b[2J")
    line = formatter(form, "gw-1", terminal=False).format(made)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_message_is_found_in_a_line(form):
    assert message_of(formatter(form, "gw-1", terminal=False).format(record("it {broke}"))) == "it {broke}"


@pytest.mark.parametrize("line", ["", "Killed", "{", '{"message": 5}', "{}"])
def test_a_line_of_somebody_else_is_its_own_message(line):
    assert message_of(line) == line


def test_like_faults_are_let_through_so_often_a_minute_and_then_counted():
    repeats = Repeats(a_minute=2)
    assert [repeats.passes("a", "x %s", now) for now in (0.0, 1.0, 2.0, 3.0)] == [True, True, False, False]
    assert repeats.passes("a", "y %s", 3.0)
    assert repeats.passes("b", "x %s", 3.0)
    assert list(repeats.over(59.0)) == []
    assert list(repeats.over(60.0)) == [("a", "x %s", 2)]
    assert repeats.passes("a", "x %s", 60.0)


def test_texts_that_never_come_again_do_not_fill_the_memory():
    repeats = Repeats(a_minute=1)
    assert all(repeats.passes("a", f"unique {number}", 0.0) for number in range(5000))
    assert len(repeats._wordings) <= 1000


def test_files_are_moved_on_and_the_oldest_goes(tmp_path):
    log = tmp_path / "w.log"
    for number in range(5):
        log.write_text(str(number))
        rotate(log, keep=3)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "w.log.1": "4",
        "w.log.2": "3",
        "w.log.3": "2",
    }


def run(tmp_path, body, log="w.log", **streams):
    """A program that logs into a file that is its stderr, and is given as its own."""
    head = (
        "import logging, os, sys\nfrom pathlib import Path\nfrom protocol import logs\n"
        "from protocol.config import LogConfig\n"
        f"path = Path({str(tmp_path / 'w.log')!r})\n"
        "logs.set_up(LogConfig(max_bytes=4096, keep=2), 'w', path)\nlog = logging.getLogger('x')\n"
    )
    with (tmp_path / log).open("ab") as file:
        streams = {"stdout": file, "stderr": file} | streams
        process = subprocess.run([sys.executable, "-P", "-c", head + body], check=False, **streams)
    return process


def test_a_process_keeps_its_own_log_small_and_loses_no_line(tmp_path):
    assert run(tmp_path, "for n in range(400): log.info('line %d', n)").returncode == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["w.log", "w.log.1", "w.log.2"]
    assert all(path.stat().st_size < 4096 + 200 for path in tmp_path.iterdir())
    lines = "".join((tmp_path / name).read_text() for name in reversed(names)).splitlines()
    numbers = [int(line.split()[-1]) for line in lines]
    assert numbers == list(range(numbers[0], 400))
    assert (tmp_path / "w.log.1").stat().st_mode & 0o077 == 0


def test_what_a_dying_process_prints_is_in_the_newest_file(tmp_path):
    body = "for n in range(150): log.info('line %d', n)\n"
    body += "print('printed', flush=True)\nraise SystemError('the end')"
    assert run(tmp_path, body).returncode == 1
    text = (tmp_path / "w.log").read_text()
    assert (tmp_path / "w.log.1").exists()
    assert "printed" in text
    assert text.rstrip().endswith("SystemError: the end")


def test_a_log_that_was_moved_or_removed_is_begun_anew(tmp_path):
    body = (
        "log.info('one')\npath.rename(path.with_suffix('.old'))\n"
        "log.info('two')\npath.unlink()\nlog.info('three')"
    )
    run(tmp_path, body)
    assert (tmp_path / "w.old").read_text().endswith("one\n")
    assert (tmp_path / "w.log").read_text().endswith("three\n")


def test_a_file_that_is_not_its_own_is_only_written_to(tmp_path):
    run(tmp_path, "for n in range(400): log.info('line %d', n)", log="other.log")
    assert [path.name for path in tmp_path.iterdir()] == ["other.log"]


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path):
    with open("/dev/full", "wb") as full:
        process = run(tmp_path, "log.info('x')\nos._exit(7)", stderr=full)
    assert process.returncode == 7


def test_repeated_faults_end_with_their_number(tmp_path):
    run(tmp_path, "for n in range(50): log.warning('worker %s is odd', n)")
    lines = (tmp_path / "w.log").read_text().splitlines()
    assert len(lines) == 31
    assert lines[-1].endswith("WARNING x worker %s is odd … suppressed 20 times")


def test_what_is_only_printed_does_not_grow_without_bound_either(tmp_path):
    body = (
        "import time\nlogs._LOOK_S = 0.05\nlogs.set_up(LogConfig(max_bytes=4096, keep=2), 'w', path)\n"
        "print('x' * 5000, flush=True)\nend = time.monotonic() + 20\n"
        "moved = lambda: Path(f'{path}.1').exists() and logs._is_same(1, path)\n"
        "while not moved() and time.monotonic() < end: time.sleep(0.02)\n"
        "print('after', flush=True)"
    )
    run(tmp_path, body)
    assert (tmp_path / "w.log.1").stat().st_size > 5000
    assert (tmp_path / "w.log").read_text() == "after\n"
