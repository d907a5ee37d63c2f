"""Copies of models, into another folder and to a machine whose connection breaks."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import pytest

from clusterctl.model_manifest import NAME, read_manifest
from clusterctl.model_push import push
from clusterctl.model_store import folder_state, partial_of
from clusterctl.operations import OperationError, RefusedError
from clusterctl.runner import LocalRunner
from tests.clusterctl.test_model_commands import clusterctl, models, write_model
from tests.protocol.test_model_folder import safetensors

__all__ = ["clusterctl", "models"]
pytestmark = pytest.mark.integration

WEIGHTS = safetensors(300_000)


class Counted(LocalRunner):
    """A second machine, which is this one. It counts what is streamed there."""

    def __init__(self, broken_after=None):
        self.streamed = []
        self.broken_after = broken_after

    def command(self, argv):
        self.streamed.append(argv[-1].rpartition("/")[2])
        if self.broken_after is None:
            return list(argv)
        limited = argv[2].replace("cat ", f"head -c {self.broken_after} ")
        return [*argv[:2], f"{limited}; echo the line is dead >&2; exit 255", argv[3]]


@pytest.fixture
def source(models):
    folder = write_model(models / "org" / "m")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    return folder


def target_of(tmp_path):
    return PurePosixPath(tmp_path / "second" / "org" / "m")


def test_a_copy_is_verified_there(source, tmp_path):
    target = target_of(tmp_path)
    assert push(source, target, LocalRunner())
    copied = tmp_path / "second" / "org" / "m"
    assert sorted(os.listdir(copied)) == [NAME, "config.json", "model.safetensors", "tokenizer.json"]
    assert (copied / "model.safetensors").read_bytes() == WEIGHTS
    assert folder_state(copied) == ("verified", "")
    assert read_manifest(copied) == read_manifest(source)
    assert os.listdir(copied.parent) == ["m"]
    assert not push(source, target, LocalRunner())


def test_a_connection_that_breaks_leaves_what_arrived_and_it_goes_on_there(source, tmp_path):
    target = target_of(tmp_path)
    with pytest.raises(OperationError, match=r"did not reach local \(the line is dead\); run the same"):
        push(source, target, Counted(broken_after=100_000))
    assert not (tmp_path / "second" / "org" / "m").exists()
    partial = partial_of(tmp_path / "second" / "org" / "m")
    (partial / "model.safetensors").write_bytes(WEIGHTS[:100_000])
    again = Counted()
    before = (partial / "model.safetensors").stat().st_ino
    push(source, target, again)
    copied = tmp_path / "second" / "org" / "m" / "model.safetensors"
    assert copied.read_bytes() == WEIGHTS
    assert copied.stat().st_ino == before
    assert "config.json" not in again.streamed


@pytest.mark.parametrize("left", [b"?" * 100_000, WEIGHTS[:-1] + b"?", WEIGHTS + b"?"])
def test_what_arrived_damaged_is_sent_again(source, tmp_path, left):
    partial = partial_of(tmp_path / "second" / "org" / "m")
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(left)
    push(source, target_of(tmp_path), LocalRunner())
    assert (tmp_path / "second" / "org" / "m" / "model.safetensors").read_bytes() == WEIGHTS


def test_what_arrives_damaged_twice_is_named(source, tmp_path):
    class Lossy(LocalRunner):
        def command(self, argv):
            return [*argv[:2], argv[2].replace("cat ", "tr a b "), argv[3]]

    with pytest.raises(OperationError, match=r"\S+ arrives damaged on local, twice"):
        push(source, target_of(tmp_path), Lossy())
    assert not (tmp_path / "second" / "org" / "m").exists()


def test_another_model_there_is_not_overwritten(source, tmp_path):
    write_model(tmp_path / "second" / "org" / "m")
    with pytest.raises(RefusedError, match="is there already on local, and is not this model"):
        push(source, target_of(tmp_path), LocalRunner())


def test_a_damaged_model_is_not_copied(source, tmp_path):
    (source / "model.safetensors").write_bytes(WEIGHTS[:-1])
    with pytest.raises(RefusedError, match=r"model\.safetensors is damaged"):
        push(source, target_of(tmp_path), LocalRunner())
    assert not (tmp_path / "second").exists()


def test_a_model_that_changed_is_verified_before_it_is_copied(source, tmp_path):
    push(source, target_of(tmp_path), LocalRunner())
    (source / "chat_template.jinja").write_text("x")
    with pytest.raises(RefusedError, match="first: clusterctl model verify"):
        push(source, PurePosixPath(tmp_path / "third" / "m"), LocalRunner())


def test_a_folder_that_cannot_be_written_to(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OperationError, match="cannot be written to"):
        push(source, PurePosixPath(tmp_path / "file" / "m"), LocalRunner())


def test_the_command(clusterctl, source, tmp_path):
    clusterctl("init")
    told = clusterctl("model", "push", "org/m", str(tmp_path / "second"))
    assert f"org/m is in {tmp_path / 'second' / 'org' / 'm'}" in told
    assert clusterctl("model", "push", "org/m", str(tmp_path / "second")).startswith("unchanged: ")
    assert "no node has the name 'studio-9'" in clusterctl("model", "push", "org/m", "studio-9", code=3)
