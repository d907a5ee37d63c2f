"""Which folder is meant by a model's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.models import embedded_folder, is_hub_id, model_path

MODELS = Path("/models")


@pytest.mark.parametrize("name", ["org/Qwen3-8B-4bit", "a/b", "mlx-community/Llama_3.1", "_x/y_"])
def test_names_of_the_hub(name):
    assert is_hub_id(name)
    assert model_path(name, MODELS) == MODELS / name


@pytest.mark.parametrize(
    "name", ["m", "/a/b", "a/b/c", "../m", "a/..", ".x/m", "a/m.", "a /b", "ä/b", "a/b\n", ""]
)
def test_what_is_no_name_of_the_hub(name):
    assert not is_hub_id(name)


def test_a_folder_that_is_there_comes_before_a_name_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "org" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_path("org/m", MODELS) == Path("org/m")


def test_the_embedded_model_has_a_folder_of_its_own():
    assert model_path("embedded", MODELS) == embedded_folder(MODELS)
