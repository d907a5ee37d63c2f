"""`clusterctl model …`, and what of it other commands ask."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from clusterctl import fitting
from clusterctl.cli import cli
from clusterctl.memory_fit import GIB, Machine
from protocol.addresses import Home
from tests.protocol.test_model_folder import safetensors

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 32_768,
}
"""Of a model that takes 4 GiB of cache for a request."""


def write_model(folder, **config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(8))
    return folder


@pytest.fixture
def models(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    monkeypatch.setenv("STUDIOFLEET_MODELS", str(folder))
    monkeypatch.setattr(fitting, "read_machine", lambda runner, python: Machine("local", 16 * GIB))
    return folder


@pytest.fixture
def clusterctl(tmp_path, monkeypatch, models):
    monkeypatch.setenv("STUDIOFLEET_HOME", str(tmp_path / "home"))

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def test_what_fits_is_told_with_its_arithmetic(clusterctl, models):
    write_model(models / "org" / "m")
    told = clusterctl("model", "fit", "--model", "org/m")
    assert "GB KV cache of 1 x 32768 tokens" in told
    assert "together: " in told
    assert "\nit fits\nwith all 8 places taken, by long requests, its cache would need" in told


def test_what_does_not_fit_is_refused_with_options_that_do(clusterctl, models):
    write_model(models / "org" / "m")
    told = clusterctl("model", "fit", "--model", "org/m", "--max-model-len", "32768", code=3)
    assert "GB too much\nit does not fit\nit fits with --max-model-len" in told
    found = json.loads(
        clusterctl("model", "fit", "--model", "org/m", "--kv-tokens", "999999", "--json", code=3)
    )
    assert (found["fits"], found["workers"][0]["id"]) == (False, "new worker")


def test_a_model_that_is_not_there_is_refused(clusterctl):
    assert "clusterctl model pull org/m" in clusterctl("model", "fit", "--model", "org/m", code=3)


def test_a_worker_that_does_not_fit_beside_the_others_is_not_added(clusterctl, models, tmp_path):
    write_model(models / "org" / "m")
    clusterctl("init", "--workers", "0")
    add = ("add-worker", "--no-start", "--model", "org/m", "--max-num-seqs", "2", "--max-model-len", "32768")
    assert "m-1 is added" in clusterctl(*add)
    told = clusterctl(*add, code=3)
    assert told.startswith("refused: m-2 does not fit into the memory of this machine; ")
    assert "\nm-1: " in told
    assert "\ntogether: " in told
    assert Home(tmp_path / "home").config.read_text().count("[[workers]]") == 1
    assert "unchanged: m-1" in clusterctl(*add, "--id", "m-1")
    assert "m-2 is added" in clusterctl(*add, "--force-memory")


def test_a_worker_keeps_the_name_of_what_was_pulled_and_the_path_of_what_was_not(
    clusterctl, models, tmp_path
):
    write_model(models / "org" / "m")
    write_model(tmp_path / "other")
    clusterctl("init", "--workers", "0")
    for name in ("org/m", str(tmp_path / "other")):
        clusterctl("add-worker", "--no-start", "--model", name, "--max-model-len", "256")
        assert f'model = "{name}"' in Home(tmp_path / "home").config.read_text()


def test_other_engines_are_not_measured(clusterctl):
    clusterctl("init", "--workers", "0")
    added = clusterctl(
        "add-worker", "--no-start", "--model", "x", "--engine", "fake", "--max-num-seqs", "999"
    )
    assert "memory" not in added
