"""`supervisor = "launchd"`: the commands of clusterctl over the double of launchd. Not verified on a Mac."""

from __future__ import annotations

import os
import plistlib
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocol.locks import locked
from tests.fleet.mac import ON_A_MAC, Mac, a_mac
from tests.fleet.mac_shaped import TOOLS
from tests.integration import operating as operators
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator, operating

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root"),
]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mac]:
    with a_mac() as mac:
        command = [sys.executable, "-P", "-c", ON_A_MAC, str(mac.folder)]
        monkeypatch.setattr(operators, "CLUSTERCTL", command)
        monkeypatch.setattr("clusterctl.root_helper.DAEMONS", mac.helper.daemons)
        monkeypatch.setattr("clusterctl.root_access.local_helper", mac.helper_of)
        monkeypatch.setattr("clusterctl.launchd_cluster.LocalRunner", lambda: mac)
        monkeypatch.setenv("PATH", mac.environ["PATH"])
        monkeypatch.setenv("HOME", str(mac.folder))
        monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'deploy'}")
        yield mac


@pytest.fixture
def operator(mac: Mac) -> Iterator[Operator]:
    with operating() as operator:
        operator.init("fake-1")
        config = operator.home.config
        text = config.read_text()
        config.write_text(text.replace('supervisor = "process"', 'supervisor = "launchd"'))
        assert 'supervisor = "launchd"' in config.read_text()
        yield operator


def plists(mac: Mac) -> list[str]:
    return sorted(path.name for path in mac.folder.rglob("*.plist"))


def chat(operator: Operator) -> httpx.Response:
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(f"{operator.url()}/v1/chat/completions", json=body, timeout=30)


def test_a_cluster_lives_under_launchd(mac, operator):
    mac.fail(settle_s=0.8, began_but=37, root_only=True)
    operator.run("up", "--wait")
    assert operator.answers()
    names = plists(mac)
    assert len(names) == 2
    before = operator.status()
    assert (before["supervisor"]["state"], before["workers"][0]["restarts"]) == ("ready", 0)

    operator.run("up", "--wait")  # again: nothing changes
    pids = [process["pid"] for process in operator.status()["gateways"] + operator.status()["workers"]]
    assert pids == [process["pid"] for process in before["gateways"] + before["workers"]]

    os.kill(operator.worker("fake-1")["pid"], signal.SIGKILL)
    wait_for(lambda: operator.worker("fake-1")["restarts"] == 1, "launchd to start it again")
    operator.wait_state("fake-1", "ready")

    assert "answers" in operator.add("fake-2", "--wait")
    assert len(plists(mac)) == 3
    pid = operator.worker("fake-2")["pid"]
    assert "serves again" in operator.run("restart", "fake-2", "--wait")
    worker = operator.worker("fake-2")
    assert worker["pid"] != pid
    assert worker["last_exit"] == 75
    gateway = operator.status()["gateways"][0]["pid"]
    assert "serves again" in operator.run("restart", "gw-1", "--wait")
    assert operator.status()["gateways"][0]["pid"] != gateway
    diagnosis = operator.begin("doctor", "--json").communicate(timeout=60)[0]
    assert '"findings"' in diagnosis
    assert not re.search(r"supervisor\.down|process\.", diagnosis), diagnosis
    operator.run("remove-worker", "fake-2")
    assert plists(mac) == names

    everyone = [process["pid"] for process in operator.status()["gateways"] + operator.status()["workers"]]
    config = operator.home.config
    config.write_text(config.read_text().replace('supervisor = "launchd"', 'supervisor = "process"'))
    assert "first: clusterctl down" in operator.run("up", code=3)
    assert "the cluster is down" in operator.run("down")
    operator.nothing_is_left(everyone)
    assert plists(mac) == []
    assert "unchanged" in operator.run("down")
    assert not any("kickstart -k" in call for call in mac.calls)


def test_doctor_finds_jobs_that_run_under_older_lists(mac, operator):
    for tool in TOOLS.iterdir():
        if not (mac.folder / tool.name).exists():
            (mac.folder / tool.name).symlink_to(tool)
    operator.run("up", "--wait")
    assert "nothing is wrong" in operator.run("doctor")
    path = next(mac.folder.rglob("*.worker.fake-1.plist"))
    path.write_bytes(plistlib.dumps({**plistlib.loads(path.read_bytes()), "ExitTimeOut": 200}))
    said = operator.run("doctor", code=1)
    assert "error    launchd.exit-timeout" in said
    assert "exit time-out of 90 s, and its property list has 200 s" in said
    assert "1 error\n" in said


def test_a_worker_that_never_gets_ready_is_parked_and_comes_back_on_command(mac, operator):
    broken = mac.folder / "broken"
    broken.touch()
    (mac.folder / "sometimes.py").write_text(
        "from pathlib import Path\n"
        "from worker.engine.fake import FakeEngine\n"
        "class Sometimes(FakeEngine):\n"
        "    def prepare_for_start(self):\n"
        f"        if Path({str(broken)!r}).exists():\n"
        "            raise RuntimeError('the disk is on fire')\n"
        "        super().prepare_for_start()\n"
    )
    operator.environ["PYTHONPATH"] += f":{mac.folder}"
    operator.run("remove-worker", "fake-1")
    operator.run("add-worker", "--model", "fake-model", "--engine", "sometimes:Sometimes", "--id", "odd")
    config = operator.home.config
    config.write_text(config.read_text() + '[[workers]]\nid = "no-model"\nmodel = "/nowhere"\n')
    operator.run("up")
    parked: dict[str, Any] = operator.wait_state("odd", "parked")
    assert "the disk is on fire" in parked["last_error"]
    assert (parked["restarts"], parked["last_exit"]) == (4, 0)
    assert any("clusterctl restart odd" in line for line in parked["last_log"])
    wait_for(lambda: chat(operator).status_code == 503, "the gateway to know that nobody starts it")
    assert "the disk is on fire" in operator.run("status")
    assert "repaired" in operator.run("restart", "odd", "--wait", "--timeout", "5", code=1)

    hopeless = operator.worker("no-model")  # of its kind that only a person can repair: not tried again
    assert (hopeless["state"], hopeless["restarts"]) == ("parked", 0)
    assert "/nowhere" in hopeless["last_error"]

    broken.unlink()
    operator.run("restart", "odd", "--wait")
    assert chat(operator).status_code == 200


def test_two_supervisors_of_one_home_are_refused(operator):
    operator.home.run.mkdir(mode=0o700, exist_ok=True)
    with locked(operator.home.lock("supervisor")):
        assert "first: clusterctl down" in operator.run("up", code=3)
    assert "starts at boot by itself" in operator.run("boot", "install", code=3)
    assert "nothing stays in the foreground" in operator.run("up", "--foreground", code=3)
