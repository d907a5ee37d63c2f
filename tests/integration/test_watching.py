"""`clusterctl top` and `status --watch`, in a terminal and without, while processes die and come back."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.cluster import PATIENCE_S, chat, script, wait_for
from tests.integration.operating import CLUSTERCTL, Operator, operating
from tests.integration.terminal import in_terminal

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
INTERRUPT = "\x03"
LEFT_AS_IT_WAS = ("\x1b[?1049l", "\x1b[?25h")
"""The screen of before, and a cursor."""


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with operating() as operator:
        operator.init("fake-1", "fake-2")
        operator.run("up", "--wait")
        operator.environ["TERM"] = "xterm"
        yield operator


def test_top_shows_failures_a_killed_worker_a_restarted_gateway_and_leaves_the_terminal_as_it_was(operator):
    command = [*CLUSTERCTL, "top", "--interval", "0.1"]
    with in_terminal(command, operator.environ, columns=160) as terminal:
        terminal.until(lambda shown: "2 of 2 workers ready" in shown)
        fault = chat(script(tokens=["a"], fail_after=0))
        answer = httpx.post(f"{operator.url()}/v1/chat/completions", json=fault, timeout=PATIENCE_S)
        assert answer.status_code >= 400
        terminal.news(lambda shown: answer.headers["x-request-id"] in shown)
        os.kill(operator.wait_state("fake-1", "ready")["pid"], signal.SIGKILL)
        terminal.news(lambda shown: "1 of 2 workers ready" in shown)
        terminal.news(lambda shown: "2 of 2 workers ready" in shown)
        gateway = operator.status()["gateways"][0]["pid"]
        os.kill(gateway, signal.SIGKILL)
        terminal.news(lambda shown: "0 of 2 workers ready" in shown or "starting" in shown)
        terminal.news(lambda shown: "2 of 2 workers ready" in shown)
        terminal.type(INTERRUPT)
        assert terminal.end() == 0
    assert "Traceback" not in terminal.shown
    assert all(sequence in terminal.raw for sequence in LEFT_AS_IT_WAS)


def test_top_that_is_told_to_end_leaves_the_terminal_as_it_was(operator):
    with in_terminal([*CLUSTERCTL, "top"], operator.environ) as terminal:
        terminal.until(lambda shown: "workers ready" in shown)
        terminal.send(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
    assert all(sequence in terminal.raw for sequence in LEFT_AS_IT_WAS)


def test_status_watch_draws_in_place_and_leaves_the_last_picture(operator):
    command = [*CLUSTERCTL, "status", "--watch", "--interval", "0.1"]
    with in_terminal(command, operator.environ) as terminal:
        terminal.until(lambda shown: shown.count("fake-2") > 2)
        assert "\x1b[1A" in terminal.raw
        terminal.type(INTERRUPT)
        assert terminal.end() == 0
    assert "Traceback" not in terminal.shown
    assert LEFT_AS_IT_WAS[0] not in terminal.raw


@pytest.mark.parametrize("command", ["top", "status --watch"])
def test_without_a_terminal_pictures_follow_each_other_without_colours(operator, command):
    shown = operator.run(*command.split(), "--interval", "0.1", "--count", "3")
    assert shown.count("fake-2") == 3
    assert "\x1b" not in shown


def test_whoever_has_seen_enough_leaves_without_complaints(operator):
    watching = operator.begin("top", "--interval", "0.1")
    assert watching.stdout is not None
    assert watching.stdout.readline()
    watching.stdout.close()
    wait_for(lambda: watching.poll() is not None, "the end")


@pytest.mark.parametrize("command", ["status", "status --json", "list"])
def test_what_nobody_reads_ends_as_by_sigpipe_without_a_word(operator, command):
    reader, writer = os.pipe()
    os.close(reader)
    told = subprocess.run(
        [*CLUSTERCTL, *command.split()],
        env=operator.environ,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (told.returncode, told.stderr) == (141, b"")


@pytest.mark.parametrize("command", ["top --count 1", "status"])
def test_a_closed_output_is_told_in_a_line(operator, command):
    line = f"exec {shlex.join(CLUSTERCTL)} {command} >&-"
    told = subprocess.run(
        ["sh", "-c", line], env=operator.environ, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert told.returncode == 1
    assert told.stderr.startswith("failed: ")
    assert told.stderr.count("\n") == 1


def test_no_colour_is_shown_to_who_wants_none(operator):
    colours = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7])m")

    def shown(**more: str) -> str:
        with in_terminal([*CLUSTERCTL, "status"], {**operator.environ, **more}) as terminal:
            assert terminal.end() == 0
        return terminal.raw

    assert colours.search(shown())
    assert not colours.search(shown(NO_COLOR="1"))


def test_json_is_told_once(operator):
    assert "leave out --watch" in operator.run("status", "--watch", "--json", code=2)
