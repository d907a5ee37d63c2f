"""The supervisor as pid 1 of a container, whose other processes come to it when their parents end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from protocol.addresses import Home
from tests.integration.cluster import chat, script, wait_for
from tests.integration.operating import CLUSTERCTL, Operator

ROOT = Path(__file__).parents[2]
CONTAINER = [
    "unshare",
    *(["--user", "--map-root-user"] if os.getuid() else []),
    "--fork",
    "--pid",
    "--mount-proc",
]


def has_containers() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="pid namespaces and subreapers are Linux's"),
]
in_a_container = pytest.mark.skipif(
    not has_containers(), reason="unshare (util-linux) is missing, or may not make a pid namespace here"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    yield folder
    shutil.rmtree(folder)


class Container:
    """A command that runs as pid 1 of a pid namespace of its own, or without one; and all beneath it."""

    def __init__(self, command: list[str], environ: dict[str, str], output: Path, *, alone: bool) -> None:
        self._alone = alone
        with output.open("wb") as file:
            self._top = subprocess.Popen(
                [*(CONTAINER if alone else []), *command],
                env={**os.environ, **environ},
                cwd=ROOT,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def first(self) -> psutil.Process:
        """The process of the command."""
        top = psutil.Process(self._top.pid)
        return wait_for(top.children, "pid 1 of the container")[0] if self._alone else top

    def below(self) -> list[psutil.Process]:
        return self.first().children(recursive=True)

    def zombies(self) -> list[psutil.Process]:
        found = []
        for process in self.below():
            try:
                if process.status() == psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def ended(self) -> int:
        return self._top.wait(timeout=60)

    def close(self) -> None:
        """End what is left."""
        if self._top.poll() is None:
            for process in [*self.below(), self.first()]:
                process.kill()
            self._top.kill()
            self._top.wait()


@pytest.mark.parametrize("alone", [pytest.param(True, marks=in_a_container), False])
def test_no_zombie_stays_of_what_is_killed_or_was_left_by_its_parents(folder, alone):
    home, marks, output = Home(folder / "home"), folder / "marks", folder / "output"
    home.path.mkdir(mode=0o700)
    marks.mkdir()
    gateway = 'version = 1\n[gateway]\nid = "gw"\nhttp = "127.0.0.1:0"\n'
    home.config.write_text(f'{gateway}[[workers]]\nid = "abandons-1"\nmodel = "m"\nengine = "fake"\n')
    command = [sys.executable, "-m", "tests.integration.standin", "supervisor", str(home.config), str(marks)]
    container = Container(command, {"STUDIOFLEET_HOME": str(home.path)}, output, alone=alone)
    try:
        for process_id in ("gw", "abandons-1"):
            wait_for((marks / f"{process_id}.up").exists, f"{process_id} to be up")
        wait_for((marks / "orphan").exists, "a process that has lost its parent")
        wait_for(lambda: len(container.first().children()) == 3, "it to be the supervisor's")
        (marks / "end").touch()
        wait_for(lambda: len(container.first().children()) == 2, "the orphan to be let go")
        for process in container.first().children():
            process.kill()
        starts = [marks / "gw.starts", marks / "abandons-1.starts"]
        wait_for(lambda: all(len(p.read_text().split()) == 2 for p in starts), "both to be started again")
        wait_for(lambda: not container.zombies(), "no zombie to be there")
        container.first().terminate()
        assert container.ended() == 0
    finally:
        container.close()


@in_a_container
def test_clusterctl_as_pid_1_says_when_it_serves_and_finishes_requests_at_sigterm(folder):
    operator = Operator(folder / "home")
    operator.init("fake-1")
    output = folder / "output"
    command = [*CLUSTERCTL, "up", "--foreground"]
    container = Container(command, operator.environ, output, alone=True)
    try:
        wait_for(lambda: f"{operator.url() or 'not yet'} serves fake-model" in output.read_text(), "the word")
        answers: list[httpx.Response] = []
        body = chat(script(tokens=["a"], repeat=100, delay_ms=20))
        url = f"{operator.url()}/v1/chat/completions"
        client = threading.Thread(target=lambda: answers.append(httpx.post(url, json=body, timeout=60)))
        client.start()
        wait_for(lambda: operator.worker("fake-1").get("running"), "the request to run")
        os.kill(container.first().pid, signal.SIGTERM)  # what `docker stop` sends
        client.join()
        assert answers[0].json()["choices"][0]["message"]["content"] == "a" * 100
        assert container.ended() == 0
        assert list(operator.home.run.iterdir()) == []
    finally:
        container.close()
