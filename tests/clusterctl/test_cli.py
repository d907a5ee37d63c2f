"""The commands that need no running cluster: files, words and exit codes."""

import json

import pytest
from click.testing import CliRunner

from clusterctl.cli import cli


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDIOFLEET_HOME", str(tmp_path / "home"))

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return result.output

    return invoke


@pytest.fixture
def config_file(tmp_path):
    return tmp_path / "home" / "cluster.toml"


def test_init_writes_a_configuration_in_private_folders(run, config_file):
    assert "clusterctl up" in run("init")
    assert config_file.exists()
    for folder in (".", "run", "logs", "keys"):
        assert (config_file.parent / folder).stat().st_mode & 0o777 == 0o700


def test_init_once_more_changes_nothing(run, config_file):
    run("init", "--workers", "2")
    before = config_file.read_text()
    assert "unchanged" in run("init")
    assert "unchanged" in run("init", "--workers", "2")
    assert config_file.read_text() == before


def test_init_refuses_to_overwrite_another_configuration(run):
    run("init")
    assert "differs" in run("init", "--workers", "3", code=3)


def test_init_refuses_an_address_that_is_none(run, config_file):
    run("init", "--http", "nowhere", code=3)
    assert not config_file.exists()


def test_a_worker_is_added_listed_and_removed(run):
    run("init", "--workers", "0")
    added = run("add-worker", "--model", "m", "--engine", "fake", "--alias", "x", "--alias", "y")
    assert "m-1 is added" in added
    worker = json.loads(run("list", "--json"))["workers"][0]
    assert (worker["id"], worker["aliases"], worker["served_name"]) == ("m-1", ["x", "y"], "m")
    assert "m-1" in run("list")
    assert "removed" in run("remove-worker", "m-1")
    assert json.loads(run("list", "--json"))["workers"] == []


def test_every_option_of_add_worker_reaches_the_file(run):
    run("init", "--workers", "0")
    options = {
        "--model": "m",
        "--id": "w",
        "--served-name": "name",
        "--alias": "other",
        "--engine": "fake",
        "--max-num-seqs": "3",
        "--max-waiting": "2",
        "--max-model-len": "100",
        "--kv-tokens": "500",
        "--engine-option": "load_s=0.5",
    }
    run("add-worker", "--no-start", *(word for pair in options.items() for word in pair))
    worker = json.loads(run("list", "--json"))["workers"][0]
    expected = {
        "model": "m",
        "id": "w",
        "served_name": "name",
        "aliases": ["other"],
        "engine": "fake",
        "max_num_seqs": 3,
        "max_waiting": 2,
        "max_model_len": 100,
        "kv_tokens": 500,
        "engine_options": {"load_s": 0.5},
    }
    assert {key: worker[key] for key in expected} == expected


def test_the_same_worker_twice_is_unchanged_and_another_is_refused(run):
    run("init", "--workers", "0")
    same = ("add-worker", "--model", "m", "--engine", "fake", "--id", "w")
    run(*same)
    assert "unchanged" in run(*same)
    assert "max_num_seqs" in run(*same, "--max-num-seqs", "2", code=3)


def test_a_folder_is_written_with_its_whole_path(run, tmp_path, monkeypatch):
    run("init", "--workers", "0")
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    run("add-worker", "--model", "model")
    assert json.loads(run("list", "--json"))["workers"][0]["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    "arguments",
    [
        ("add-worker", "--model", "m", "--engine", "nonsense"),
        ("add-worker", "--model", "m", "--max-num-seqs", "0"),
        ("add-worker", "--model", "m", "--id", "a b"),
        ("add-worker", "--model", "m", "--id", "gw-1"),
        ("add-worker", "--model", "m", "--engine-option", "x"),
        ("remove-worker", "gw-1"),
    ],
)
def test_what_would_not_be_valid_is_refused_and_not_written(run, config_file, arguments):
    run("init")
    before = config_file.read_text()
    run(*arguments, code=3)
    assert config_file.read_text() == before


def test_a_worker_that_is_not_there_is_removed_already(run):
    run("init")
    assert "unchanged" in run("remove-worker", "zzz")


@pytest.mark.parametrize(
    "arguments",
    [("add-worker",), ("nonsense",), ("up", "--wait", "--foreground"), ("init", "--workers", "-1")],
)
def test_wrong_usage_has_its_own_exit_code(run, arguments):
    run(*arguments, code=2)


@pytest.mark.parametrize("command", ["up", "status", "list"])
def test_without_a_configuration_the_cure_is_named(run, command):
    assert "clusterctl init" in run(command, code=3)


def test_status_of_a_cluster_that_is_down(run):
    run("init", "--workers", "2")
    status = json.loads(run("status", "--json"))
    assert [worker["state"] for worker in status["workers"]] == ["stopped", "stopped"]
    assert status["gateways"][0]["state"] == "stopped"
    assert "the cluster is down" in run("status")


def test_tables_have_no_colours_where_nobody_sees_them(run):
    run("init")
    assert "\x1b" not in run("status") + run("list")


def test_another_configuration_file_can_be_named(run, tmp_path):
    path = tmp_path / "other.toml"
    run("init", "--config", str(path))
    assert json.loads(run("list", "--json", "--config", str(path)))["workers"][0]["id"] == "smol-1"


def test_down_with_nothing_running_changes_nothing(run):
    assert "unchanged" in run("down")
    run("init")
    assert "unchanged" in run("down")


def test_every_command_explains_itself(run):
    for command in ("init", "up", "down", "add-worker", "remove-worker", "list", "status"):
        assert "--config" in run(command, "--help")
