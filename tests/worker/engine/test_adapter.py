"""Adapter folders: whole, damaged, missing. No MLX."""

import json

import pytest

from tests.protocol.test_model_folder import safetensors
from worker.engine.adapter import open_adapter

CONFIG = {"num_layers": 2, "lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.0}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "adapters.safetensors").write_bytes(safetensors(8))
    return tmp_path


def test_a_whole_adapter_is_one_of_a_model(folder):
    adapter = open_adapter(folder)
    assert adapter.tensors == {"a"}
    assert adapter.fingerprint("x") == adapter.fingerprint("x") != adapter.fingerprint("y")


def test_the_fingerprint_follows_the_weights_themselves(folder):
    """Two trainings give files of one form."""
    first = open_adapter(folder).fingerprint("x")
    content = (folder / "adapters.safetensors").read_bytes()
    (folder / "adapters.safetensors").write_bytes(content[:-1] + b"\1")
    second = open_adapter(folder).fingerprint("x")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | {"num_layers": 3}))
    assert len({first, second, open_adapter(folder).fingerprint("x")}) == 3


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("adapter_config.json", None, r"adapter_config\.json is missing"),
        ("adapter_config.json", b"{", r"adapter_config\.json is damaged: it is no JSON"),
        ("adapter_config.json", b"{}", r"adapter_config\.json is damaged: it lacks rank, scale"),
        ("adapter_config.json", b'{"peft_type": "LORA"}', r"adapter_config\.json is of PEFT's format"),
        ("adapters.safetensors", None, r"adapters\.safetensors is missing"),
        ("adapters.safetensors", b"", r"adapters\.safetensors is damaged"),
        ("adapters.safetensors", safetensors(8)[:-1], r"adapters\.safetensors is damaged: it has"),
    ],
)
def test_what_is_wrong_is_named_by_file(folder, name, content, words):
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        open_adapter(folder)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no adapter at .*nowhere"):
        open_adapter(tmp_path / "nowhere")


def test_a_full_fine_tuning_has_no_rank(folder):
    (folder / "adapter_config.json").write_text('{"fine_tune_type": "full", "num_layers": 2}')
    assert open_adapter(folder)
