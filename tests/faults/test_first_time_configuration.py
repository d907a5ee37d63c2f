"""A `cluster.toml` that was written by hand: each mistake with its cause and its cure, exit code 3.

A gateway or worker that is started on such a file ends with 78, in the same words.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from protocol.states import ExitCode
from tests.faults.newcomer import run

GATEWAY = 'version = 1\n[gateway]\nid = "gw-1"\nhttp = "127.0.0.1:8000"\n'
WORKER = '[[workers]]\nid = "w-1"\nmodel = "m"\nengine = "fake"\n'
OTHER = WORKER.replace("w-1", "w-2").replace('"m"', '"x"')
MISTAKES = {
    "a key misspelt": (GATEWAY.replace("http", "htp"), "unknown field `htp`", "did you mean `http`?"),
    "a key of a worker misspelt": (
        GATEWAY + WORKER + "max_num_seq = 3",
        "unknown field `max_num_seq`",
        "did you mean `max_num_seqs`?; that is worker 'w-1'",
    ),
    "no TOML": (GATEWAY + "[[workers]\n", "not valid TOML: Expected ']]'", "at line 5, column 10"),
    "nothing in it": ("", "missing required field `version`", "reads `version = 1`"),
    "a version of the future": (GATEWAY.replace("1", "9", 1), "Invalid enum value 9", "reads `version = 1`"),
    "no gateway": ("version = 1", "there is no gateway", "add a [gateway] table"),
    "an id twice": (GATEWAY + 2 * WORKER, "the id 'w-1' is used twice", "must differ"),
    "an id with a space": (
        GATEWAY + WORKER.replace("w-1", "w 1"),
        "workers[0].id",
        "an id has 1 to 32",
    ),
    "a number in quotes": (
        GATEWAY + WORKER + 'max_num_seqs = "8"',
        "got `str` - at `$.workers[0].max_num_seqs`",
        "write it without quotes",
    ),
    "a text without quotes": (GATEWAY.replace('"127.0.0.1:8000"', "8000"), "got `int`", "write it in quotes"),
    "a zero": (GATEWAY + WORKER + "max_num_seqs = 0", "max_num_seqs", "Expected `int` >= 1"),
    "a port alone": (GATEWAY.replace("127.0.0.1:", ""), "'8000' is no address", "write HOST:PORT"),
    "a host alone": (GATEWAY.replace(":8000", ""), "'127.0.0.1' is no address", "write HOST:PORT"),
    "a scheme": (GATEWAY.replace("127", "http://127"), "is no address", "leave out http://"),
    "an engine misspelt": (
        GATEWAY + WORKER.replace("fake", "fast"),
        "engine 'fast' is unknown",
        "write one of",
    ),
    "a choice misspelt": (
        GATEWAY + WORKER + 'residency = "ondemand"',
        "Invalid enum value 'ondemand'",
        "write one of 'always', 'on_demand'",
    ),
    "two models of one name": (
        GATEWAY + WORKER + OTHER + 'aliases = ["m"]',
        "the name 'm' stands for two models",
        "another served_name or alias",
    ),
}


@pytest.mark.parametrize(("text", "cause", "cure"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_configuration(home, monkeypatch, text, cause, cure):
    home.config.write_text(text)
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home.path))
    for command in ("status", "up"):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 3, result.output
        assert result.output.startswith(f"refused: {home.config}: ")
        assert cause in result.output
        assert cure in result.output
        assert len(result.output.splitlines()) == 1


def test_an_open_address_without_keys(home, monkeypatch):
    home.config.write_text(GATEWAY.replace("127.0.0.1", "0.0.0.0"))
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home.path))
    result = CliRunner().invoke(cli, "up")
    assert result.exit_code == 3, result.output
    assert "open to other machines, and there are no API keys; make one (clusterctl keys" in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "cause", "cure"),
    [
        (b"# caf\xe9\n", "it is not UTF-8", "have your editor save it as that"),
        (GATEWAY.encode("utf-16"), "it is not UTF-8", "have your editor save it as that"),
        (None, "there is no such file", "make one with: clusterctl init"),
        ("folder", "it is a folder", "name the file in it with --config"),
    ],
)
def test_a_configuration_that_is_no_text(home, monkeypatch, content, cause, cure):
    home.config.unlink()
    if content == "folder":
        home.config.mkdir()
    elif content is not None:
        home.config.write_bytes(content)
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home.path))
    result = CliRunner().invoke(cli, "up")
    assert result.exit_code == 3, result.output
    assert f"{home.config}: {cause}" in result.output
    assert cure in result.output


@pytest.mark.integration
@pytest.mark.parametrize(("program", "process_id"), [("gateway", "gw-1"), ("worker", "w-1")])
def test_a_process_ends_with_78_and_the_same_words(home, program, process_id):
    for content, words in ((b"# caf\xe9\n", "it is not UTF-8"), (b"version = 1", "there is no gateway")):
        home.config.write_bytes(content)
        result = run(["-m", program, "--config", str(home.config), "--id", process_id], home)
        assert result.returncode == ExitCode.MISCONFIGURED, result.stdout
        assert f"{home.config}: {words}" in result.stdout
        assert "Traceback" not in result.stdout


@pytest.mark.integration
@pytest.mark.parametrize("program", ["gateway", "worker"])
def test_a_process_that_is_not_configured(home, program):
    result = run(["-m", program, "--config", str(home.config), "--id", "nobody"], home)
    assert result.returncode == ExitCode.MISCONFIGURED, result.stdout
    assert f"no {program} has the id 'nobody'; configured: " in result.stdout
