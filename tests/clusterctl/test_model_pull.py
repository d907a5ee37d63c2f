"""`clusterctl model pull`, against a hub on this machine."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from clusterctl.model_manifest import read_manifest
from protocol.locks import locked
from tests.clusterctl.hub_double import REVISION, hub_of
from tests.clusterctl.test_model_commands import CONFIG
from tests.protocol.test_model_folder import safetensors

pytestmark = pytest.mark.integration

WEIGHTS = safetensors(300_000)
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"not wanted",
    "run.py": b"never fetched",
}
PULLED = {"config.json", "tokenizer.json", "model.safetensors"}


@pytest.fixture
def hub():
    with hub_of(dict(FILES)) as hub:
        yield hub


@pytest.fixture
def models(tmp_path, monkeypatch, hub):
    monkeypatch.setenv("STUDIOFLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STUDIOFLEET_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    return tmp_path / "models"


@pytest.fixture
def model(models):
    def invoke(*arguments, code=0):
        result = CliRunner().invoke(cli, ("model", *arguments))
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def names(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_model_is_in_its_place_when_it_is_whole(model, models, hub):
    assert model("pull", "org/m").endswith(f"org/m is in {models / 'org' / 'm'}\n")
    folder = models / "org" / "m"
    assert names(folder) == PULLED
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    manifest = read_manifest(folder)
    assert manifest is not None
    assert (manifest.revision, manifest.source, set(manifest.files)) == (REVISION, "hub org/m", PULLED)
    assert os.listdir(models / "org") == ["m"]
    assert "verified" in model("list")
    asked = len(hub.asked)
    assert model("pull", "org/m").startswith("unchanged: ")
    assert len(hub.asked) == asked + 1


def test_a_connection_that_breaks_goes_on_where_it_was(model, models, hub):
    hub.cut = [100_000]
    model("pull", "org/m")
    assert hub.ranges_of("model.safetensors") == [None, "bytes=100000-"]
    assert (models / "org" / "m" / "model.safetensors").read_bytes() == WEIGHTS


def test_what_was_fetched_before_an_interruption_is_used(model, models, hub, monkeypatch):
    def interrupted(_seconds):
        raise KeyboardInterrupt

    hub.cut = [100_000]
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.time.sleep", interrupted)
        assert "interrupted: what was fetched is kept" in model("pull", "org/m", code=130)
    assert not (models / "org" / "m").exists()
    assert "partial" in model("list")
    model("pull", "org/m")
    assert hub.ranges_of("config.json") == [None]
    assert hub.ranges_of("model.safetensors")[1] == "bytes=100000-"


def test_a_hub_that_is_asked_too_often_is_waited_for(model, hub):
    hub.refuse = [(429, {"Retry-After": "0"})]
    assert "(429); wait some minutes" in model("pull", "org/m", code=1)
    model("pull", "org/m")


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {"X-Error-Code": "RepoNotFound"}, "there is no model org/m at http://127"),
        (404, {"X-Error-Code": "RepoNotFound"}, "there is no model org/m at http://127"),
        (403, {"X-Error-Code": "GatedRepo"}, "is given only to those who accepted its terms"),
        (403, {}, "does not let this user read org/m (403)"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_cure(model, models, hub, status, headers, words):
    hub.refuse = [(status, headers)]
    told = model("pull", "org/m", code=3)
    assert words in told
    assert "hf auth login" in told
    assert not (models / "org" / "m").exists()


def test_a_revision_that_is_not_there(model):
    assert "has no revision 'v9'" in model("pull", "org/m", "--revision", "v9", code=3)


@pytest.mark.parametrize("name", ["m", "/a/b", "org/../m", "a/b/c"])
def test_what_is_no_name_is_not_asked_for(model, hub, name):
    assert "is no name of a model of the hub" in model("pull", name, code=3)
    assert not hub.asked


def test_no_network(model, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in model("pull", "org/m", code=1)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_arrives_damaged_is_named_and_fetched_anew(model, models, hub, name):
    hub.instead[name] = FILES[name][:-1] + b"?"
    assert f"{name} of org/m arrived damaged" in model("pull", "org/m", code=1)
    assert not (models / "org" / "m").exists()
    hub.instead.clear()
    model("pull", "org/m")
    assert (models / "org" / "m" / name).read_bytes() == FILES[name]


def test_what_is_no_model_in_mlx_format_is_refused_before_it_is_fetched(model, hub):
    del hub.files["model.safetensors"]
    assert "has no model*.safetensors" in model("pull", "org/m", code=3)
    assert len(hub.asked) == 1


def test_a_repository_that_is_no_model_is_not_put_in_place(model, models, hub):
    hub.files["config.json"] = b"{}"
    assert "names no model_type" in model("pull", "org/m", code=3)
    assert not (models / "org" / "m").exists()


def test_a_disk_that_is_too_small_is_told_before_it_is_full(model, hub, monkeypatch):
    monkeypatch.setattr("clusterctl.model_pull.shutil.disk_usage", lambda path: _Free())
    assert "needs 300 kB more, and the disk of" in model("pull", "org/m", code=3)


class _Free:
    free = 1 << 20


def test_two_do_not_fetch_one_model(model, models):
    (models / "org").mkdir(parents=True)
    with locked(models / "org" / ".m.lock"):
        assert "is held by the process" in model("pull", "org/m", code=1)


def test_another_revision_is_not_mixed_in(model, hub):
    model("pull", "org/m")
    hub.revision = "f" * 40
    assert "clusterctl model rm org/m, then pull it" in model("pull", "org/m", code=3)
    assert model("rm", "org/m").startswith("org/m is removed")
    model("pull", "org/m")


def test_damage_is_found_by_reading_and_repaired_by_fetching_that_file(model, models, hub):
    model("pull", "org/m")
    weights = models / "org" / "m" / "model.safetensors"
    weights.write_bytes(WEIGHTS[:-1] + b"?")
    told = model("verify", "org/m", code=1)
    assert f"{weights} has other content than when it arrived" in told
    assert "clusterctl model pull org/m" in told
    assert "damaged" in model("list")
    model("pull", "org/m")
    assert weights.read_bytes() == WEIGHTS
    assert hub.ranges_of("model.safetensors") == [None, None]
    assert model("verify", "org/m").endswith("org/m is as it arrived\n")


def test_a_truncated_file_is_seen_without_reading(model, models, hub):
    model("pull", "org/m")
    weights = models / "org" / "m" / "model.safetensors"
    weights.write_bytes(WEIGHTS[:-1])
    assert f"{weights} is damaged: it has {len(WEIGHTS) - 1} bytes" in model("list")
    assert "to be repaired: " in model("pull", "org/m")
    assert weights.read_bytes() == WEIGHTS
