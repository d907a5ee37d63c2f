"""Names of entries, and which files have to go."""

import os

import pytest

from worker.engine.prefix_files import Entry, listed, name_of, parsed, surplus

KEY, SUM = bytes(range(16)), "ab" * 16
NAME = name_of(KEY, 64, SUM)


def entry(name, nbytes, used):
    return Entry(name, KEY, 64, SUM, nbytes, used)


def test_a_name_tells_key_tokens_and_checksum():
    assert parsed(NAME, 5, 1.5) == Entry(NAME, KEY, 64, SUM, 5, 1.5)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x.safetensors",
        NAME[:-1],
        NAME.upper(),
        "x" + NAME,
        NAME.replace("-64-", "-x-"),
        ".partial-1.safetensors",
    ],
)
def test_another_form_of_name_is_no_entry(name):
    assert parsed(name, 5, 1.5) is None


def test_a_folder_is_told_apart_into_entries_and_strangers(tmp_path):
    (tmp_path / NAME).write_bytes(b"12345")
    os.utime(tmp_path / NAME, (7, 7))
    (tmp_path / "notes.txt").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    entries, foreign = listed(tmp_path)
    assert entries == [Entry(NAME, KEY, 64, SUM, 5, 7.0)]
    assert sorted(path.name for path in foreign) == ["dangling", "notes.txt"]


@pytest.mark.parametrize(
    ("limit", "gone"),
    [(60, []), (59, ["old"]), (50, ["old"]), (49, ["old", "middle"]), (0, ["old", "middle", "new"])],
)
def test_those_used_longest_ago_go_until_the_rest_fits(limit, gone):
    entries = [entry("middle", 20, 2.0), entry("new", 30, 3.0), entry("old", 10, 1.0)]
    assert [each.name for each in surplus(entries, limit)] == gone
