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
    (tmp_path / "model" / "model.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    run("add-worker", "--model", "model")
    assert json.loads(run("list", "--json"))["workers"][0]["model"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    "arguments",
    [
        ("add-worker", "--model", "embedded", "--engine", "nonsense"),
        ("add-worker", "--model", "embedded", "--max-num-seqs", "0"),
        ("add-worker", "--model", "embedded", "--id", "a b"),
        ("add-worker", "--model", "embedded", "--id", "gw-1"),
        ("add-worker", "--model", "embedded", "--engine-option", "x"),
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


def test_a_dry_run_shows_the_difference_and_writes_nothing(run, config_file):
    run("init")
    before = config_file.read_text()
    shown = run("add-worker", "--model", "m", "--engine", "fake", "--drain-timeout", "5", "--dry-run")
    assert '+id = "m-1"' in shown
    assert "+drain_timeout_s = 5" in shown
    assert not [line for line in shown.splitlines() if line.startswith("-") and line[:3] != "---"]
    assert config_file.read_text() == before
    assert "already" in run("add-worker", "--model", "embedded", "--id", "smol-1", "--alias", "default",
                            "--max-num-seqs", "8", "--dry-run")  # fmt: skip


def test_a_dry_run_refuses_what_would_be_refused(run):
    run("init")
    run("add-worker", "--model", "embedded", "--id", "gw-1", "--dry-run", code=3)


def test_whoever_follows_a_request_is_told_where_other_machines_log(run, config_file):
    run("init", "--workers", "1")
    (config_file.parent / "logs" / "gw-1.log").write_text(
        "2026-01-31 22:00:01,000 INFO g request req-1: done\n"
    )
    looked = run("logs", "--request", "req-1")
    assert "request req-1: done" in looked
    assert "node run" not in looked
    with config_file.open("a") as file:
        file.write('[[nodes]]\nname = "studio-2"\nhost = "h"\n')
        file.write('[[workers]]\nid = "w"\nmodel = "/m"\nnode = "studio-2"\n')
    assert "clusterctl node run studio-2 logs --request req-1" in run("logs", "--request", "req-1")


def test_a_removal_can_be_looked_at_first(run, config_file):
    run("init", "--workers", "2")
    before = config_file.read_text()
    shown = run("remove-worker", "smol-2", "--dry-run")
    assert '-id = "smol-2"' in shown
    assert "+" not in shown.replace("+++", "").replace(" +", "")
    assert "unchanged" in run("remove-worker", "smol-9", "--dry-run")
    assert config_file.read_text() == before


def test_nothing_waits_for_a_worker_that_does_not_start(run, config_file):
    run("init")
    before = config_file.read_text()
    run("add-worker", "--model", "m", "--wait", "--no-start", code=2)
    assert "clusterctl up" in run("add-worker", "--model", "m", "--engine", "fake", "--wait", code=3)
    assert config_file.read_text() == before


def test_init_makes_a_key_for_its_owner_alone(run, config_file):
    run("init")
    key = config_file.parent / "keys" / "admin.key"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_text()
    run("init")
    assert key.read_text() == before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_taught_to_complete(run, shell):
    assert "_CLUSTERCTL_COMPLETE" in run("completion", shell)


def test_ids_are_completed(run, monkeypatch):
    run("init", "--workers", "2")
    monkeypatch.setenv("_CLUSTERCTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "clusterctl restart smol")
    monkeypatch.setenv("COMP_CWORD", "2")
    result = CliRunner().invoke(cli, prog_name="clusterctl")
    assert result.output.split() == ["plain,smol-1", "plain,smol-2"]


@pytest.mark.parametrize("command", ["drain", "undrain", "restart"])
def test_who_is_not_configured_is_refused_and_where_nothing_runs_that_is_said(run, command):
    run("init")
    assert "smol-1" in run(command, "nobody", code=3)
    assert "clusterctl up" in run(command, "smol-1", code=1)


def test_logs_of_nobody_are_refused_and_a_wrong_time_is_wrong_usage(run):
    run("init")
    assert "smol-1" in run("logs", "nobody", code=3)
    assert "10m" in run("logs", "--since", "soon", code=2)
    assert run("logs") == "nothing was logged yet\n"


def test_logs_in_which_nothing_is_found_say_so(run, config_file):
    run("init")
    log = config_file.parent / "logs" / "smol-1.log"
    log.write_text("2026-01-31 22:40:00.000 INFO a request req-1 began\n")
    assert "no log names a request req-2; its id is the x-request-id" in run("logs", "--request", "req-2")
    assert "nothing was logged since 2026-02-01 00:00:00" in run("logs", "--since", "2026-02-01")
    assert "req-1" in run("logs", "--request", "req-1", "--since", "2026-01-01")
    assert run("logs", "--lines", "0") == ""


def test_logs_are_shown_as_lines_and_as_json(run, config_file):
    run("init")
    log = config_file.parent / "logs" / "smol-1.log"
    log.write_text("2026-01-31 22:00:01,000 ERROR worker failed\nTraceback\n")
    assert run("logs").splitlines() == [
        "2026-01-31 22:00:01.000 smol-1: ERROR worker failed",
        "                        smol-1: Traceback",
    ]
    entry = json.loads(run("logs", "smol-1", "--json"))
    assert (entry["id"], entry["level"], entry["message"]) == ("smol-1", "ERROR", "failed\nTraceback")
    assert entry["time"].startswith("2026-01-31T")


@pytest.mark.parametrize("model", ["", "/no/such/model", "embeded", "org/name"])
def test_a_model_that_is_not_there_is_refused_before_anything_is_written(run, config_file, model):
    run("init")
    before = config_file.read_text()
    assert "model folder" in run("add-worker", "--model", model, code=3)
    assert config_file.read_text() == before


def test_init_writes_over_an_empty_file_and_refuses_a_folder_and_what_it_cannot_read(run, config_file):
    run("init")
    text = config_file.read_text()
    config_file.write_text(" \n")
    assert "is written" in run("init")
    assert config_file.read_text() == text
    config_file.write_text("nonsense")
    assert "cluster.toml" in run("init", code=3)
    assert config_file.read_text() == "nonsense"
    config_file.unlink()
    config_file.mkdir()
    assert "it is a folder" in run("init", code=3)
