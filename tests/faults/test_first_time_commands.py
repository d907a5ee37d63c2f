"""Commands typed wrong, at the wrong time or in the wrong place: cause, cure, exit code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterctl import operations
from clusterctl.cli import cli
from protocol.locks import locked
from protocol.states import ExitCode
from tests.faults.newcomer import run
from tests.integration.cluster import config_text, fake_worker

ADD = ("add-worker", "--no-start", "--id", "n", "--model")
HIDES_MLX = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "mlx_lm" else find(name, *more)
from worker.__main__ import main
main()
"""


@pytest.fixture
def clusterctl(home, monkeypatch):
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home.path))
    home.config.write_text(config_text(fake_worker("w-1")))

    def invoke(*arguments, code):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return result.output

    return invoke


# --- the model -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "model", "words"),
    [
        ([], "nowhere", ("no model folder at nowhere, seen from /", "give a folder in MLX format")),
        ([], "org/Qwen3-8B-4bit", ("if it is a model of the hub", "clusterctl model pull org/Qwen3-8B-4bit")),
        (["m/q.gguf"], "m/q.gguf", ("of a format that is not MLX's", "mlx_lm.convert")),
        (["m/config.json"], "m/config.json", ("is a file", "give the folder in which it lies")),
        (["m/q.gguf"], "m", ("no model*.safetensors, and q.gguf is no format of MLX", "mlx_lm.convert")),
        (["m/config.json", "m/x.bin"], "m", ("x.bin is no format of MLX", "mlx_lm.convert")),
        (["m/README.md"], "m", ("no model*.safetensors", "copy the whole model there")),
    ],
)
def test_what_is_no_model(clusterctl, tmp_path, monkeypatch, files, model, words):
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    said = clusterctl(*ADD, model, code=3)
    for expected in words:
        assert expected in said


@pytest.mark.integration
def test_no_mlx_where_a_model_is_to_be_served(home):
    result = run(["-c", HIDES_MLX, "--config", str(home.config), "--id", "w-1"], home)
    assert result.returncode == ExitCode.MISCONFIGURED, result.stdout
    assert "needs MLX, which is not installed; run: scripts/install" in result.stdout
    assert "Traceback" not in result.stdout


@pytest.mark.integration
def test_an_engine_whose_package_is_not_installed(home):
    home.config.write_text(
        config_text(fake_worker("w-1").replace('"fake"', '"no_such_package.engine:Engine"'))
    )
    result = run(["-m", "worker", "--config", str(home.config), "--id", "w-1"], home)
    assert result.returncode == ExitCode.MISCONFIGURED, result.stdout
    assert "No module named 'no_such_package'; install its package here" in result.stdout


# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (("restart", "nobody"), "there is no process 'nobody'; configured: gw-1, w-1"),
        (("drain", "nobody"), "no worker has the id 'nobody'; configured: w-1"),
        (("undrain", "nobody"), "no worker has the id 'nobody'; configured: w-1"),
        (("logs", "nobody"), "there is no log of nobody; known are: gw-1, w-1"),
        (("remove-worker", "gw-1"), "gw-1 is a gateway, not a worker"),
        (
            ("add-worker", "--model", "other", "--engine", "fake", "--id", "w-1"),
            "Choose another --id, or remove",
        ),
    ],
)
def test_a_process_that_is_not_there_or_is_there_already(clusterctl, command, cause):
    assert cause in clusterctl(*command, code=3)


def test_a_command_that_is_misspelt(clusterctl):
    assert "Did you mean one of: 'restart', 'status'?" in clusterctl("strat", code=2)


def test_a_time_that_is_none(clusterctl):
    assert "write 10m, 2h, 1d, 22:40" in clusterctl("logs", "--since", "soon", code=2)


def test_what_is_so_already_is_no_failure(clusterctl):
    assert "unchanged" in clusterctl("down", code=0)
    assert "unchanged" in clusterctl("remove-worker", "nobody", code=0)


def test_what_needs_a_cluster_that_is_up(clusterctl):
    assert "to start everything: clusterctl up" in clusterctl("undrain", "w-1", code=1)
    words = clusterctl("add-worker", "--model", "x", "--engine", "fake", "--wait", code=3)
    assert "first: clusterctl up" in words


# --- the home --------------------------------------------------------------------------------------------


def test_a_supervisor_that_hangs_is_named_with_what_to_do(clusterctl, home, monkeypatch):
    """The lock that it holds is all that is seen of it."""
    monkeypatch.setattr(operations, "_ANSWER_S", 0.2)
    home.run.mkdir()
    with locked(home.lock("supervisor")):
        said = clusterctl("down", code=1)
    assert f"the supervisor (pid {os.getpid()}) does not answer; see {home.logs}" in said
    assert f"kill -9 {os.getpid()}, which ends nothing else, and then: clusterctl up" in said


def test_a_home_that_is_a_file(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.write_text("something else")
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home))
    for command, cure in (("init", "it is no folder; remove it"), ("up", "or set STUDIOFLEET_HOME")):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 3, result.output
        assert str(home) in result.output
        assert cure in result.output
    assert home.read_text() == "something else"


def test_a_home_whose_parent_is_missing_is_made(tmp_path, monkeypatch):
    home = tmp_path / "a" / "b" / "home"
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home))
    assert CliRunner().invoke(cli, ["init", "--workers", "0"]).exit_code == 0
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_home_of_another_user(clusterctl, home):
    os.chown(home.path, 12345, 12345)
    said = clusterctl("up", code=3)
    assert f"the folder {home.path} belongs to another user; remove it, or set STUDIOFLEET_HOME" in said


def test_a_home_that_others_may_enter(clusterctl, home):
    home.path.chmod(0o755)
    assert f"chmod 700 {home.path}" in clusterctl("up", code=3)


@pytest.mark.integration
def test_a_disk_that_is_full_when_the_configuration_is_written(home):
    """The limit on a file's size stands for the full disk."""
    home.config.unlink()
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
    result = run(["-c", f"{full} from clusterctl.cli import cli; cli(['init'])"], home)
    assert result.returncode == 1, result.stdout
    assert "failed: " in result.stdout
    assert "make room" in result.stdout
    assert "Traceback" not in result.stdout
    assert not home.config.exists()


def test_the_models_folder_may_be_anywhere(clusterctl, tmp_path):
    """A folder is written with its whole path: the worker runs elsewhere."""
    folder = Path(tmp_path / "my models" / "m")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    clusterctl(*ADD, str(folder), code=0)
    assert str(folder) in clusterctl("list", "--json", code=0)
