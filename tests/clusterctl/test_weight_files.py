from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.weight_files import INDEX, damage, weight_bytes

HEADER = json.dumps(
    {"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
).encode()
WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + b"12345678"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    return tmp_path


def test_a_whole_model_has_no_damage(folder):
    assert damage(folder) == ""
    assert weight_bytes(folder) == len(WHOLE)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (WHOLE[:-1], "its header says"),
        (WHOLE + b"1", "its header says"),
        (WHOLE[:20], "header cannot be read"),
        (b"", "header cannot be read"),
        ((5).to_bytes(8, "little") + b"[1,2]", "header cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_a_damaged_file_is_named(folder, content, words):
    (folder / "model.safetensors").write_bytes(content)
    assert words in damage(folder)
    assert "model.safetensors" in damage(folder)


def test_what_the_index_names_has_to_be_there(folder):
    (folder / INDEX).write_text('{"weight_map": {"w": "model-00002-of-00002.safetensors"}}')
    assert "lacks model-00002-of-00002.safetensors" in damage(folder)
    (folder / INDEX).write_text("{")
    assert "cannot be read" in damage(folder)


def test_a_model_without_a_configuration_is_none(folder):
    (folder / "config.json").unlink()
    assert "lacks config.json" in damage(folder)
