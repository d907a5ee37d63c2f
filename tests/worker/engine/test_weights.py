"""Model folders: whole, damaged, missing."""

import json

import pytest

from worker.engine.loading import context_limit
from worker.engine.weights import open_folder


def safetensors(size, claimed=None):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, claimed or size]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * size


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64, "vocab_size": 10}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors(8))
    return tmp_path


def test_a_whole_folder_tells_its_limits(folder):
    found = open_folder(folder)
    assert (found.context, found.vocabulary) == (64, 10)


def test_limits_may_stand_in_the_text_part(folder):
    (folder / "config.json").write_text('{"text_config": {"max_position_embeddings": 32}}')
    assert (open_folder(folder).context, open_folder(folder).vocabulary) == (32, None)


def test_the_fingerprint_follows_what_matters(folder):
    first = open_folder(folder).fingerprint()
    assert first == open_folder(folder).fingerprint()
    (folder / "README.md").write_text("hello")
    assert first == open_folder(folder).fingerprint()
    (folder / "chat_template.jinja").write_text("{{ x }}")
    second = open_folder(folder).fingerprint()
    (folder / "model.safetensors").write_bytes(safetensors(12))
    assert len({first, second, open_folder(folder).fingerprint()}) == 3


def break_nothing_there(folder):
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no model"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "model.safetensors is damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"[]"), "is damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(safetensors(8, 9)), "is damaged: it has"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00002.safetensors"}}'
            ),
            "lacks model-00002.safetensors",
        ),
        (break_nothing_there, "config.json is missing"),
    ],
)
def test_damage_is_named_with_the_file(folder, damage, words):
    damage(folder)
    with pytest.raises(ValueError, match=words):
        open_folder(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no model folder at .*nowhere"):
        open_folder(tmp_path / "nowhere")


def test_the_context_may_be_lowered_and_not_raised():
    assert context_limit(100, None) == 100
    assert context_limit(100, 50) == 50
    assert context_limit(None, 50) == 50
    assert context_limit(None, None) is None
    with pytest.raises(ValueError, match=r"101.*100"):
        context_limit(100, 101)
