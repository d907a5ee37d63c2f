"""A node whose workers are services of its launchd, from `node add` on. Not verified on a Mac."""

from __future__ import annotations

import os
import plistlib
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.ssh import known_hosts
from clusterctl.wheelhouse import read_wheelhouse
from tests.fleet.installed import installed, prefix_of
from tests.fleet.mac import ON_A_MAC, Mac, a_mac
from tests.fleet.sshd import Machine, free_port, needs_sshd
from tests.fleet.watching import processes_of
from tests.integration import operating as operators
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator, operating

pytestmark = [
    pytest.mark.integration,
    needs_sshd,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root"),
]

PASSWORD = "open sesame"
ON_THE_NODE = """\
if [ "$3" = clusterctl.cli ]; then
    shift 3
    export PATH={mac}:$PATH PYTHONPATH=$PYTHONPATH:{mac}
    exec {python} -P {mac}/on_a_mac.py {mac} "$@"
fi
"""
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
def mac() -> Iterator[Mac]:
    with a_mac() as mac:
        (mac.folder / "on_a_mac.py").write_text(ON_A_MAC)
        (mac.folder / "password").write_text(PASSWORD)
        (mac.folder / "sometimes.py").write_text(SOMETIMES.format(broken=str(mac.folder / "broken")))
        yield mac


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Of the version that the node has already, so that nothing is sent."""
    (tmp_path / "studiofleet-0.0.0-py3-none-any.whl").touch()
    return tmp_path


@pytest.fixture
def studio(mac: Mac, wheels: Path) -> Iterator[Machine]:
    more = ON_THE_NODE.format(mac=mac.folder, python=sys.executable)
    with (
        tempfile.TemporaryDirectory(prefix="fleet-") as name,
        installed("studio-2", Path(name) / "2", read_wheelhouse(wheels).version, more) as it,
    ):
        yield it


@pytest.fixture
def operator() -> Iterator[Operator]:
    with operating() as operator:
        operator.run("init", "--workers", "0", "--http", "127.0.0.1:0")
        text = operator.home.config.read_text()
        listen = f'listen = ["ipc", "tcp://127.0.0.1:{free_port()}"]'
        operator.home.config.write_text(text.replace('listen = ["ipc"]', listen))
        operator.run("up", "--wait")
        yield operator


def add_words(studio: Machine, wheels: Path) -> list[str]:
    key = subprocess.run(
        ["ssh-keygen", "-lf", str(studio.folder / "host_key.pub")], capture_output=True, text=True, check=True
    )
    words = {
        "--name": studio.name,
        "--port": studio.port,
        "--identity": studio.identity,
        "--prefix": prefix_of(studio),
        "--wheelhouse": wheels,
        "--fingerprint": key.stdout.split()[1],
        "--supervisor": "launchd",
    }
    return ["node", "add", "127.0.0.1", *(str(word) for pair in words.items() for word in pair)]


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


def of_root(mac: Mac) -> list[str]:
    """The files that only root could have put there."""
    folders = (mac.helper.daemons, mac.helper.helpers, mac.helper.sudoers_folder)
    return sorted(path.name for folder in folders for path in Path(folder).glob("*"))


def test_a_node_lives_under_its_launchd_and_leaves_nothing(
    mac: Mac, operator: Operator, studio: Machine, wheels: Path
):
    add = add_words(studio, wheels)
    said = operator.run(*add, code=3)
    assert "a password is required" in said
    assert "--ask-sudo" in said
    assert of_root(mac) == []
    assert not known_hosts(operator.home).read_text()
    assert "studio-2 is added" in typed_at_a_terminal(operator, [*add, "--ask-sudo"], PASSWORD)
    helper, line = of_root(mac)
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
    assert of_root(mac) == sorted([helper, line, plist.name])
    operator.run("remove-worker", "far-1", limit_s=120)
    assert of_root(mac) == [helper, line]
    assert operator.run("node", "remove", "studio-2", limit_s=120) == "studio-2 is removed\n"
    assert of_root(mac) == []
    assert not prefix_of(studio).exists()
    wait_for(lambda: not processes_of(prefix_of(studio)), "all processes there to have ended")
    assert not any("kickstart -k" in call for call in mac.calls)
