"""Processes of which the run folder does not tell any more: somebody emptied it."""

from __future__ import annotations

import os
import signal

import pytest
from click.testing import CliRunner

from clusterctl import operations
from clusterctl.cli import cli
from tests.integration.operating import operating

pytestmark = pytest.mark.integration


@pytest.fixture
def operator():
    with operating() as operator:
        yield operator


def test_a_supervisor_whose_run_folder_was_emptied_is_named_and_gets_no_rival(operator, monkeypatch):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pids = operator.pids()
    for path in operator.home.run.iterdir():
        path.unlink()
    monkeypatch.setenv("STUDIOFLEET_HOME", str(operator.home.path))
    monkeypatch.setattr(operations, "_ANSWER_S", 0.3)
    for command in (["up"], ["up", "--foreground"], ["down"]):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 1, result.output
        assert f"(pid {pids[0]}), but its files in {operator.home.run} were removed" in result.output
        assert f"kill -9 {pids[0]}, and then: clusterctl down; clusterctl up" in result.output
    os.kill(pids[0], signal.SIGKILL)
    operator.run("down")
    operator.nothing_is_left(pids)


def test_down_finds_what_a_killed_supervisor_had_not_written_down(operator):
    operator.init("fake-1")
    operator.run("up", "--wait")
    pids = operator.pids()
    os.kill(pids[0], signal.SIGKILL)
    for path in operator.home.run.glob("*.pid"):
        path.unlink()
    operator.run("down")
    operator.nothing_is_left(pids)
