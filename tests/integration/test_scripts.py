"""The scripts, as far as they can be tried without a network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.cluster import wait_for

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SHELL_SCRIPTS = [
    path
    for path in sorted((ROOT / "scripts").iterdir())
    if path.is_file() and path.read_bytes().startswith(b"#!/bin/sh")
]


def call(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts and what they read, in a folder whose name has a space, without a `.venv`."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for name in ("scripts", "requirements", "protocol"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_plain_shell(script):
    result = call("sh", "-n", script)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--once", ""), ("--once", "a", "b")])
def test_the_demo_explains_how_it_is_called(arguments):
    result = call(ROOT / "scripts" / "demo", *arguments)
    assert result.returncode == 2
    assert '--once ["QUESTION"]' in result.stderr


def test_the_demo_has_a_help_text():
    result = call(ROOT / "scripts" / "demo", "--help")
    assert result.returncode == 0
    assert "takes everything down again" in result.stdout.replace("\n", " ").replace("  ", " ")


def test_install_refuses_what_it_does_not_know():
    assert call(ROOT / "scripts" / "install", "--nonsense").returncode == 2


def test_install_without_a_python_that_is_new_enough_says_how_to_get_one(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("dirname", "uname", "id"):
        (tools / tool).symlink_to(shutil.which(tool) or "")
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    result = subprocess.run(
        ["/bin/sh", str(checkout / "scripts" / "install")],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "no Python 3.11" in result.stderr
    assert "apt-get install python3" in result.stderr or "brew install" in result.stderr
    assert not (checkout / ".venv").exists()


def test_install_is_done_at_once_when_nothing_changed(checkout):
    """With an environment whose pip fails if it is called, and whose stamp is that of a first run."""
    bin_folder = checkout / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    calls = checkout / "pip-calls"
    python = bin_folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in "-m pip"*) echo "$*" >>"{calls}"; exit 0;; esac\n'
        'case "$*" in *find_library*) exit 0;; esac\n'
        f'exec "{shutil.which("python3")}" "$@"\n'
    )
    python.chmod(0o755)
    install = checkout / "scripts" / "install"
    assert call(install).returncode == 0
    first = calls.read_text()
    assert "--require-hashes" in first
    assert "-r requirements/worker.txt" in first
    assert call(install).returncode == 0
    assert calls.read_text() == first
    for arguments in ("--traces", "--gateway --traces", "--dev"):
        assert call(install, *arguments.split()).returncode == 0
        *_others, requirements, _ours = calls.read_text().splitlines()
        assert "-r requirements/traces.txt" in requirements
        assert ("-r requirements/worker.txt" in requirements) == ("--gateway" not in arguments)
        before = calls.read_text()
        smaller = arguments.removesuffix("--traces").removesuffix("--dev").split()
        assert (call(install, *smaller).returncode, calls.read_text()) == (0, before)  # it holds that, too
    first = calls.read_text()
    (checkout / "requirements" / "worker.txt").write_text("# changed\n")
    assert call(install).returncode == 0
    assert calls.read_text() != first


def test_the_lightest_install_has_no_mlx():
    for name, expected in (("base", False), ("worker", True)):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        assert [f"\n{each}==" in text for each in ("mlx", "mlx-vlm", "pillow")] == [expected] * 3
        assert "--hash=sha256:" in text


def test_models_that_see_need_none_of_the_heavy_packages_that_are_left_out():
    code = "import sys, mlx_vlm.generate, mlx_vlm.models.qwen2_vl; print(*sys.modules)"
    result = call(ROOT / ".venv/bin/python", "-P", "-c", code)
    assert result.returncode == 0, result.stderr
    left_out = {"cv2", "datasets", "mlx_audio", "torch"}
    assert not left_out & set(result.stdout.split())


def test_ask_fails_without_a_gateway():
    result = call(ROOT / ".venv/bin/python", ROOT / "scripts/ask.py", "--url", "http://127.0.0.1:9", "hello")
    assert result.returncode == 1
    assert "no answer" in result.stderr


@pytest.fixture
def temporary() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def of_this_demo(temporary: Path) -> list[int]:
    """Processes that run in a home beneath the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(temporary) in process.environ().get("STUDIOFLEET_HOME", ""):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.mark.mlx
@pytest.mark.timeout(600)
def test_the_demo_answers_once_and_leaves_nothing(temporary):
    result = subprocess.run(
        [ROOT / "scripts" / "demo", "--once", "What is the capital of France?"],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "tokens/s" in result.stderr
    assert list(temporary.iterdir()) == []
    assert of_this_demo(temporary) == []


@pytest.mark.mlx
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_interrupted_leaves_nothing(temporary, number):
    demo = subprocess.Popen(
        [ROOT / "scripts" / "demo", "--once", "What is the capital of France?"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: list(temporary.glob("*/run/*.pid")), "the cluster to be starting", 300)
    os.killpg(demo.pid, number)
    assert demo.wait(timeout=200) == 128 + number
    assert list(temporary.iterdir()) == []
    wait_for(lambda: not of_this_demo(temporary), "what was killed to be gone")
