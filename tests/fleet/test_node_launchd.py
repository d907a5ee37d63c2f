"""A node whose workers are services of its launchd, from `node add` on. Not verified on a Mac."""

from __future__ import annotations

import os
import plistlib
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.ssh import known_hosts
from tests.fleet.operators import fleet_of
from tests.fleet.sshd import needs_sshd
from tests.fleet.studios import Studio, installed_studio, no_wheels
from tests.fleet.watching import processes_of
from tests.integration import operating as operators
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator

pytestmark = [
    pytest.mark.integration,
    needs_sshd,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root"),
]

PASSWORD = "open sesame"
SOMETIMES = """
from pathlib import Path
from worker.engine.fake import FakeEngine
class Sometimes(FakeEngine):
    def prepare_for_start(self):
        if Path({broken!r}).exists():
            raise RuntimeError("the disk is on fire")
        super().prepare_for_start()
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return no_wheels(tmp_path)


@pytest.fixture
def studio(wheels: Path) -> Iterator[Studio]:
    with installed_studio("studio-2", wheels) as studio:
        folder = studio.mac.folder
        (folder / "password").write_text(PASSWORD)
        (folder / "sometimes.py").write_text(SOMETIMES.format(broken=str(folder / "broken")))
        yield studio


@pytest.fixture
def operator() -> Iterator[Operator]:
    with fleet_of() as operator:
        yield operator


def typed_at_a_terminal(operator: Operator, words: list[str], answer: str) -> str:
    """What a command says at a terminal at which somebody gives an answer."""
    ours, its = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    with os.fdopen(ours, "rb"):
        ended = subprocess.run(
            [*operators.CLUSTERCTL, *words],
            env=operator.environ,
            stdin=its,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        os.close(its)
    assert ended.returncode == 0, ended
    return ended.stdout


def test_a_node_lives_under_its_launchd_and_leaves_nothing(operator: Operator, studio: Studio, wheels: Path):
    mac, add = studio.mac, studio.add_words(wheels)
    said = operator.run(*add, code=3)
    assert "a password is required" in said
    assert "--ask-sudo" in said
    assert studio.of_root() == []
    assert not known_hosts(operator.home).read_text()
    assert "studio-2 is added" in typed_at_a_terminal(operator, [*add, "--ask-sudo"], PASSWORD)
    helper, line = studio.of_root()
    assert helper == line
    assert "unchanged" in operator.run(*add)
    (Path(mac.helper.helpers) / helper).unlink()
    assert "studio-2 is added" in typed_at_a_terminal(operator, [*add, "--ask-sudo"], PASSWORD)

    on_it = ["--host", "studio-2", "--model", "fake-model"]
    operator.run("add-worker", *on_it, "--engine", "fake", "--id", "far-1", "--wait", limit_s=120)
    assert operator.answers()
    plist = Path(mac.helper.daemons) / f"{helper}.worker.far-1.plist"
    assert plistlib.loads(plist.read_bytes())["KeepAlive"] == {"SuccessfulExit": False}
    pid = operator.worker("far-1")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: operator.worker("far-1")["pid"] not in (pid, None), "launchd to start it again")
    operator.wait_state("far-1", "ready")
    assert "unchanged: everything runs as configured" in operator.run("plan")
    operator.run("drain", "far-1")
    assert operator.worker("far-1")["state"] == "draining"
    operator.run("undrain", "far-1")
    assert operator.answers()

    (mac.folder / "broken").touch()
    operator.run("add-worker", *on_it, "--engine", "sometimes:Sometimes", "--id", "odd")
    wait_for(lambda: "odd is parked" in operator.run("status"), "launchd's worker to give up", 120)
    said = operator.run("status")
    assert "odd: " in said
    assert "the disk is on fire" in said
    assert "when that is repaired: clusterctl node run studio-2 restart odd" in said
    (mac.folder / "broken").unlink()
    operator.run("node", "run", "studio-2", "restart", "odd", limit_s=120)
    operator.wait_state("odd", "ready")

    operator.run("remove-worker", "odd", limit_s=120)
    assert studio.of_root() == sorted([helper, line, plist.name])
    operator.run("remove-worker", "far-1", limit_s=120)
    assert studio.of_root() == [helper, line]
    assert operator.run("node", "remove", "studio-2", limit_s=120) == "studio-2 is removed\n"
    assert studio.of_root() == []
    assert not studio.prefix.exists()
    wait_for(lambda: not processes_of(studio.prefix), "all processes there to have ended")
    assert not any("kickstart -k" in call for call in mac.calls)
