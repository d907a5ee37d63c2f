"""The models of this machine: found, described, removed."""

from __future__ import annotations

import json

import pytest

from clusterctl.model_manifest import NAME, model_files, read_manifest, taken, write_manifest
from clusterctl.model_store import folder_state, partial_of, remove_model, stored_models
from clusterctl.operations import RefusedError
from protocol.config import WorkerConfig
from tests.clusterctl.test_model_commands import clusterctl, models, write_model

__all__ = ["clusterctl", "models"]


def worker(model, worker_id="w-1", **more):
    return WorkerConfig(id=worker_id, model=str(model), **more)


def test_models_are_found_with_who_uses_them(models, tmp_path):
    write_model(models / "plain")
    write_model(models / "org" / "m")
    write_model(tmp_path / "elsewhere")
    partial_of(models / "org" / "n").mkdir()
    (models / "prefix-cache" / "x").mkdir(parents=True)
    workers = [
        worker("org/m"),
        worker(tmp_path / "elsewhere", "w-2", engine_options={"draft_model": str(models / "plain")}),
        worker(models / "org" / "m", "w-3"),
    ]
    found = {each.name: (each.state, each.workers) for each in stored_models(workers)}
    assert found == {
        "org/m": ("unverified", ("w-1", "w-3")),
        "org/n": ("partial", ()),
        "plain": ("unverified", ("w-2",)),
        str(tmp_path / "elsewhere"): ("unverified", ("w-2",)),
    }


def test_what_arrived_is_verified_until_it_changes(models):
    folder = write_model(models / "m")
    write_manifest(folder, taken(folder, lambda more: None))
    assert folder_state(folder) == ("verified", "")
    assert set(model_files(folder)) == {"config.json", "model.safetensors", "tokenizer.json"}
    (folder / "extra.txt").write_text("x")
    assert folder_state(folder) == ("changed", "")
    (folder / "extra.txt").unlink()
    (folder / "tokenizer.json").write_text("{ }")
    state, why = folder_state(folder)
    assert state == "damaged"
    assert f"{folder / 'tokenizer.json'} has 3 bytes and should have 2" in why


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_file_is_named(models, name):
    folder = write_model(models / "m")
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    state, why = folder_state(folder)
    assert state == "damaged"
    assert str(folder / name) in why


def test_a_manifest_that_cannot_be_read_is_none(models):
    folder = write_model(models / "m")
    (folder / NAME).write_text("{")
    assert read_manifest(folder) is None


def test_what_a_worker_uses_stays(models):
    write_model(models / "org" / "m")
    with pytest.raises(RefusedError, match=r"used by w-1; first: clusterctl remove-worker w-1"):
        remove_model("org/m", [worker("org/m")])
    assert (models / "org" / "m").is_dir()
    assert (remove_model("org/m", [worker("other")]) or 0) > 0
    assert not (models / "org").exists()
    assert remove_model("org/m", []) is None


def test_only_models_of_ours_are_removed(models, tmp_path):
    write_model(tmp_path / "mine")
    (models / "prefix-cache").mkdir(parents=True)
    for name in (
        str(tmp_path / "mine"),
        str(models),
        str(models / ".."),
        str(models / "prefix-cache"),
        str(models / ".." / "mine"),
    ):
        with pytest.raises(RefusedError, match="by hand"):
            remove_model(name, [])
    assert (tmp_path / "mine").is_dir()


def test_a_link_is_removed_and_not_what_it_leads_to(models, tmp_path):
    models.mkdir()
    (models / "m").symlink_to(write_model(tmp_path / "another disk"))
    assert remove_model(str(models / "m"), []) == 0
    assert (tmp_path / "another disk" / "config.json").exists()
    assert not (models / "m").exists()


def test_verifying_a_folder_of_unknown_origin_records_it(clusterctl, models):
    folder = write_model(models / "m")
    assert "is recorded as it is now" in clusterctl("model", "verify", str(folder))
    assert "is as it arrived" in clusterctl("model", "verify", str(folder))
    (folder / "tokenizer.json").write_text("[]")
    told = clusterctl("model", "verify", str(folder), code=1)
    assert f"{folder / 'tokenizer.json'} has other content than when it arrived" in told
    assert "copy those files again" in told
    assert "no model folder" in clusterctl("model", "verify", "nowhere", code=3)


def test_programs_are_told_what_verifying_found(clusterctl, models):
    folder = write_model(models / "m")

    def verdict(code: int = 0) -> tuple[str, dict[str, str]]:
        told = json.JSONDecoder().raw_decode(clusterctl("model", "verify", str(folder), "--json", code=code))[
            0
        ]
        assert told["path"] == str(folder)
        return told["state"], told["damaged"]

    assert verdict() == ("recorded", {})
    assert verdict() == ("verified", {})
    (folder / "tokenizer.json").write_text("[]")
    state, damaged = verdict(code=1)
    assert state == "damaged"
    assert list(damaged) == ["tokenizer.json"]


def test_list_says_what_to_do_where_there_is_none(clusterctl):
    assert "clusterctl model pull ORGANISATION/NAME" in clusterctl("model", "list")
