import os
from datetime import datetime

import pytest

from clusterctl.tails import Tail, files_of, ids_in


@pytest.fixture
def log(tmp_path):
    return tmp_path / "w.log"


@pytest.fixture
def tail(tmp_path):
    tail = Tail(tmp_path, "w")
    yield tail
    tail.close()


def write(path, *messages, mode="a"):
    with path.open(mode) as file:
        file.writelines(f"2026-01-31 22:00:01,000 INFO x {message}\n" for message in messages)


def said(entries):
    return [entry.message for entry in entries]


def test_history_then_news_and_nothing_twice(log, tail):
    write(log, "one", "two")
    assert said(tail.history(None)) == ["one", "two"]
    assert said(tail.news()) == []
    write(log, "three")
    assert said(tail.news()) == ["three"]


def test_a_line_is_shown_when_it_is_complete(log, tail):
    write(log, "one")
    assert said(tail.history(None)) == ["one"]
    with log.open("a") as file:
        file.write("2026-01-31 22:00:02,000 INFO x tw")
        file.flush()
        assert said(tail.news()) == []
        file.write("o\n")
        file.flush()
        assert said(tail.news()) == ["two"]


def test_a_rotated_log_is_followed_and_its_last_words_are_not_lost(log, tail):
    write(log, "one")
    assert said(tail.history(None)) == ["one"]
    write(log, "two")
    log.rename(log.with_name("w.log.1"))
    write(log, "three")
    assert said(tail.news()) == ["two", "three"]
    write(log, "four")
    assert said(tail.news()) == ["four"]


def test_two_rotations_between_two_looks_lose_nothing(log, tail):
    write(log, "one")
    assert said(tail.history(None)) == ["one"]
    log.rename(log.with_name("w.log.2"))
    write(log.with_name("w.log.1"), "two")
    write(log, "three")
    assert said(tail.news()) == ["two", "three"]


def test_the_moment_in_a_rotation_without_a_log_does_no_harm(log, tail):
    write(log, "one")
    assert said(tail.history(None)) == ["one"]
    log.rename(log.with_name("w.log.1"))
    assert said(tail.news()) == []
    write(log, "two")
    assert said(tail.news()) == ["two"]


def test_a_log_that_was_removed_is_followed_under_its_name(log, tail):
    write(log, "one")
    assert said(tail.history(None)) == ["one"]
    log.unlink()
    write(log, "two")
    assert said(tail.news()) == ["two"]


def test_a_log_that_was_emptied_is_read_from_its_beginning(log, tail):
    write(log, "a long first line")
    assert said(tail.history(None)) == ["a long first line"]
    write(log, "two", mode="w")
    assert said(tail.news()) == ["two"]


def test_a_log_that_comes_later_is_found(log, tail):
    assert said(tail.history(None)) == []
    write(log, "one")
    assert said(tail.news()) == ["one"]


def test_history_begins_with_what_was_rotated_away_unless_it_is_too_old(log, tmp_path):
    for number, message in ((10, "one"), (2, "two"), (1, "three")):
        write(log.with_name(f"w.log.{number}"), message)
    write(log, "four")
    write(tmp_path / "w.log.old", "not a log of ours")
    tails = [Tail(tmp_path, "w"), Tail(tmp_path, "w")]
    assert said(tails[0].history(None)) == ["one", "two", "three", "four"]
    os.utime(log.with_name("w.log.10"), (0, 0))
    assert said(tails[1].history(datetime(2026, 1, 1))) == ["two", "three", "four"]
    for tail in tails:
        tail.close()


def test_files_and_ids(tmp_path):
    for name in ("a.log", "b.log", "b.log.1", "other.txt"):
        (tmp_path / name).touch()
    assert ids_in(tmp_path) == ["a", "b"]
    assert [path.name for path in files_of(tmp_path, "b")] == ["b.log.1", "b.log"]
