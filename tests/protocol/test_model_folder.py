"""Model folders: whole, damaged, missing."""

import json

import pytest

from protocol.model_folder import open_folder


def entry(begin, size, dtype="U8", shape=None):
    return {
        "dtype": dtype,
        "shape": [size] if shape is None else shape,
        "data_offsets": [begin, begin + size],
    }


def safetensors(size, claimed=None, **tensors):
    """A file with one tensor of `size` bytes, or with these; `claimed` is what its header says instead."""
    header = json.dumps(tensors or {"a": entry(0, size if claimed is None else claimed)}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * size


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "max_position_embeddings": 64, "vocab_size": 10}'
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors(8))
    return tmp_path


def test_a_whole_folder_tells_its_limits(folder):
    found = open_folder(folder)
    assert (found.context, found.vocabulary) == (64, 10)


def test_limits_may_stand_in_the_text_part(folder):
    (folder / "config.json").write_text(
        '{"model_type": "llama", "text_config": {"max_position_embeddings": 32}}'
    )
    assert (open_folder(folder).context, open_folder(folder).vocabulary) == (32, None)


def test_the_fingerprint_follows_what_matters(folder):
    first = open_folder(folder).fingerprint()
    assert first == open_folder(folder).fingerprint()
    (folder / "README.md").write_text("hello")
    assert first == open_folder(folder).fingerprint()
    (folder / "chat_template.jinja").write_text("{{ x }}")
    second = open_folder(folder).fingerprint()
    (folder / "preprocessor_config.json").write_text('{"max_pixels": 9}')
    other = open_folder(folder).fingerprint()
    (folder / "model.safetensors").write_bytes(safetensors(12))
    third = open_folder(folder).fingerprint()
    (folder / "model.safetensors").write_bytes(safetensors(12, a=entry(0, 12, "F32", [3])))
    assert len({first, second, other, third, open_folder(folder).fingerprint()}) == 5


def weights(content, name="model.safetensors"):
    return lambda folder: (folder / name).write_bytes(content)


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


def index(**tensors):
    return text("model.safetensors.index.json", json.dumps({"weight_map": tensors}))


def together(*damages):
    return lambda folder: [damage(folder) for damage in damages]


DAMAGES = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "empty config": (text("config.json", ""), "config.json is damaged: it is empty"),
    "cut config": (text("config.json", "{"), "config.json is damaged: it is no JSON"),
    "nested config": (text("config.json", '{"a":' * 100_000), "config.json is damaged"),
    "list as config": (text("config.json", "[]"), "config.json is damaged: it holds no JSON object"),
    "another config": (text("config.json", "{}"), "config.json names no model_type"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no model"),
    "weights of another kind": (
        together(lambda f: (f / "model.safetensors").unlink(), text("m.gguf", "")),
        r"m.gguf is no format of MLX; convert",
    ),
    "Git LFS pointer": (weights(b"version https://git-lfs.github.com/spec/v1\noid x"), "git lfs pull"),
    "empty weights": (weights(b""), "model.safetensors is damaged: its header"),
    "header too long": (weights(b"\xff" * 64), "model.safetensors is damaged: its header"),
    "header no object": (weights(b"\2" + b"\0" * 7 + b"[]"), "model.safetensors is damaged: its header"),
    "header longer than the file": (weights(safetensors(8)[:20]), "model.safetensors is damaged: its header"),
    "file cut short": (weights(safetensors(8, 9)), r"model.safetensors is damaged: it has 7\d bytes"),
    "file too long": (weights(safetensors(8) + b"x"), "model.safetensors is damaged: it has"),
    "unknown type": (weights(safetensors(8, a=entry(0, 8, "F33"))), "its header cannot be read"),
    "shape of another size": (
        weights(safetensors(8, a=entry(0, 8, "F32", [3]))),
        "its header cannot be read",
    ),
    "negative shape": (weights(safetensors(8, a=entry(0, 8, "U8", [-2, -4]))), "its header cannot be read"),
    "overlap": (weights(safetensors(8, a=entry(0, 8), b=entry(4, 4))), "its header cannot be read"),
    "gap": (weights(safetensors(8, a=entry(0, 2), b=entry(4, 4))), "its header cannot be read"),
    "no offsets": (weights(safetensors(8, a={"dtype": "U8"})), "its header cannot be read"),
    "missing shard": (index(a="model-00002.safetensors"), "index.json lacks model-00002.safetensors"),
    "file outside": (index(a="../model.safetensors"), "names a file outside of the folder"),
    "absolute file": (index(a="/etc/passwd"), "names a file outside of the folder"),
    "index without map": (text("model.safetensors.index.json", "{}"), "index.json is damaged"),
    "index of wrong types": (index(a=5), "index.json is damaged"),
    "missing tensor": (index(a="model.safetensors", b="model.safetensors"), "it lacks 'b'"),
    "tensor twice": (weights(safetensors(8), "model-00001.safetensors"), "both hold 'a'"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "empty tokenizer": (text("tokenizer.json", ""), "tokenizer.json is damaged: it is empty"),
    "damaged tokenizer settings": (text("tokenizer_config.json", "{"), "tokenizer_config.json is damaged"),
    "interrupted download": (
        text("model-2.safetensors.incomplete", ""),
        r"\.incomplete is what an interrupted",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_with_the_file(folder, damage):
    do, words = DAMAGES[damage]
    do(folder)
    with pytest.raises(ValueError, match=words):
        open_folder(folder)


@pytest.mark.parametrize("position", range(8, 60))
def test_a_flipped_bit_in_the_header_is_found_or_harmless(folder, position):
    """Harmless is a change of a name: the model's own list of names finds that."""
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[position] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    found = ""
    try:
        (shard,) = open_folder(folder).weights
    except ValueError as error:
        found = str(error)
    assert "model.safetensors is damaged" in found or set(shard.tensors) != {"a"}


def test_a_download_of_the_hub_that_was_interrupted_is_found(folder):
    place = folder / ".cache" / "huggingface" / "download"
    place.mkdir(parents=True)
    (place / "model.safetensors.abc.incomplete").write_text("")
    with pytest.raises(ValueError, match="interrupted download"):
        open_folder(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no model folder at .*nowhere"):
        open_folder(tmp_path / "nowhere")
