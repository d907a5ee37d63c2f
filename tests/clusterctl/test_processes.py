import os
import shutil

import msgspec
import pytest

from clusterctl.identity import identity_of
from clusterctl.processes import (
    Record,
    describe_exit,
    is_running,
    last_words,
    read_record,
    why_silent,
    write_record,
)

STRANGE_PIDS = [
    b'{"pid": %d, "identity": "", "kind": "worker", "digest": "d", "drain_s": 1}' % pid
    for pid in (-1, 0, 2**40, 10**30)
]


def test_the_last_line_is_found_without_the_prefix_of_the_log(tmp_path):
    log = tmp_path / "w.log"
    log.write_text("old\n2026-01-02 03:04:05,678 ERROR worker.__main__ no folder /x: look\n\n")
    assert last_words(log, 0) == "no folder /x: look"


def test_only_what_this_process_wrote_counts(tmp_path):
    log = tmp_path / "w.log"
    log.write_text("of the one before\n")
    assert last_words(log, log.stat().st_size) == ""


def test_a_log_that_was_moved_aside_meanwhile_is_read_from_its_beginning(tmp_path):
    log = tmp_path / "w.log"
    log.write_text("the last words\n")
    assert last_words(log, 100_000) == "the last words"


def test_the_last_line_is_understood_as_json_too(tmp_path):
    log = tmp_path / "w.log"
    log.write_text('{"time": "x", "level": "ERROR", "message": "no folder /x: look"}\n')
    assert last_words(log, 0) == "no folder /x: look"


def test_the_end_of_a_long_log_is_enough(tmp_path):
    log = tmp_path / "w.log"
    log.write_bytes(b"x" * 100_000 + b"\nthe end")
    assert last_words(log, 0) == "the end"


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    log = tmp_path / "w.log"
    log.write_bytes(b"a\x1b[31mred\xff\n")
    assert "\x1b" not in last_words(log, 0)


def test_no_log_no_words(tmp_path):
    assert last_words(tmp_path / "none.log", 0) == ""


@pytest.mark.parametrize(
    ("code", "words", "description"),
    [
        (70, "it broke", "it broke (exit code 70)"),
        (70, "", "exit code 70"),
        (-9, "all was well", "ended by SIGKILL"),
        (-250, "", "ended by signal 250"),
        (None, "", "it ended"),
    ],
)
def test_an_exit_is_described(code, words, description):
    assert describe_exit(code, words) == description


def record(**changes):
    pid = os.getpid()
    own = Record(pid=pid, identity=identity_of(pid) or "", kind="worker", digest="d", drain_s=1.0)
    return msgspec.structs.replace(own, **changes)


def test_a_pid_file_of_a_running_process_is_read_back(tmp_path):
    write_record(tmp_path / "w.pid", record())
    assert read_record(tmp_path / "w.pid") == record()
    assert [path.name for path in tmp_path.iterdir()] == ["w.pid"]


def test_a_pid_that_was_given_to_another_program_is_not_taken_for_it(tmp_path):
    write_record(tmp_path / "w.pid", record(identity="another"))
    assert read_record(tmp_path / "w.pid") is None


@pytest.mark.parametrize("content", [b"", b"123", b'{"pid": "x"}', b"\xff", *STRANGE_PIDS])
def test_another_file_is_no_record(tmp_path, content):
    (tmp_path / "w.pid").write_bytes(content)
    assert read_record(tmp_path / "w.pid") is None


def test_no_process_has_a_pid_that_does_not_exist():
    assert not is_running(2**22 + 1, "")


def test_a_full_disk_is_why_a_process_said_nothing(tmp_path, monkeypatch):
    assert why_silent(tmp_path) == ""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=4096))
    assert why_silent(tmp_path) == f"the disk of {tmp_path} is full; make room"
