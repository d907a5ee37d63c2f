"""What goes wrong on the first day: one sentence of cause, one of cure, the right exit code."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.addresses import Home
from protocol.states import ExitCode
from tests.faults.newcomer import needs_mlx, run, worker
from tests.integration.cluster import PATIENCE_S, config_text, fake_worker, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


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
