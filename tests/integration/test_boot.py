"""`clusterctl boot` over doubles of systemd and launchd that really start what their files say."""

from __future__ import annotations

import json
import os
import plistlib
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.mac import Mac, a_mac
from tests.integration.cluster import wait_for
from tests.integration.operating import Operator, operating

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
AS_ON = "import sys; from clusterctl.cli import main; sys.platform = sys.argv.pop(1); main()"


class Booting:
    """A person on a machine with systemd, or on a Mac, as far as the doubles go."""

    def __init__(self, operator: Operator, folder: Path, mac: Mac, platform: str) -> None:
        self.operator = operator
        self.platform = platform
        self.tools = mac.folder
        for name in ("systemctl", "loginctl"):
            tool = self.tools / name
            double = ROOT / "tests" / "integration" / "managers.py"
            tool.write_text(f"#!{sys.executable}\n" + double.read_text())
            tool.chmod(0o755)
        (folder / "user").mkdir()
        operator.environ |= {
            "HOME": str(folder / "user"),
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}",
        }
        operator.environ.pop("XDG_CONFIG_HOME", None)

    def boot(self, *arguments: str, code: int = 0) -> str:
        result = subprocess.run(
            [sys.executable, "-P", "-c", AS_ON, self.platform, "boot", *arguments],
            env=self.operator.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
            check=False,
        )
        assert result.returncode == code, f"{result.returncode}: {result.stdout}\n{self.calls()}"
        return result.stdout

    def calls(self) -> str:
        path = self.tools / "calls"
        return path.read_text() if path.exists() else ""

    def state(self) -> dict[str, object]:
        return dict(json.loads(self.boot("status", "--json")))


@pytest.fixture(params=["linux", "darwin"])
def booting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Booting]:
    with operating() as operator, a_mac() as mac:
        mac.fail(settle_s=1.0, began_but=5)
        operator.init("fake-1")
        yield Booting(operator, tmp_path, mac, request.param)


def test_a_cluster_is_started_by_its_unit_serves_and_is_taken_down(booting):
    assert "has started the cluster" in booting.boot("install", "--now")
    booting.operator.wait_state("fake-1", "ready")
    wait_for(booting.operator.answers, "an answer")
    log = booting.operator.home.log("supervisor")
    wait_for(lambda: "serves fake-model" in log.read_text(), "the log to say so")
    assert "runs already" in booting.boot("install", "--now")
    assert booting.operator.run("restart", "fake-1", "--wait")
    pids = booting.operator.pids()
    assert "the cluster is down" in booting.operator.run("down")
    booting.operator.nothing_is_left(pids)


def test_installed_twice_it_is_unchanged_and_removed_twice_too(booting):
    assert "is written" in booting.boot("install")
    state = booting.state()
    assert (state["installed"], state["current"]) == (True, True)
    path = Path(str(state["file"]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.read_bytes()
    assert "unchanged" in booting.boot("install")
    assert path.read_bytes() == before == booting_text(booting)
    assert "is removed" in booting.boot("remove")
    assert "unchanged" in booting.boot("remove")
    assert not booting.state()["installed"]
    assert booting.operator.status()["supervisor"]["pid"] is None


def booting_text(booting: Booting) -> bytes:
    kind = {"linux": "systemd", "darwin": "launchd"}[booting.platform]
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "clusterctl.cli", "boot", "show", "--manager", kind],
        env=booting.operator.environ,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return shown.stdout


def test_programs_are_shown_the_unit_too(booting):
    kind = {"linux": "systemd", "darwin": "launchd"}[booting.platform]
    told = json.loads(booting.operator.run("boot", "show", "--json", "--manager", kind))
    assert told["manager"] == kind
    assert told["unit"].encode() == booting_text(booting)


def test_a_unit_of_another_configuration_is_not_current(booting):
    booting.boot("install")
    config = booting.operator.home.config
    config.write_text(config.read_text() + "\n[limits]\ndrain_timeout_s = 300.0\n")
    assert not booting.state()["current"]
    assert "boot install" in booting.boot("status")
    booting.boot("install")
    assert booting.state()["current"]


@pytest.mark.parametrize("booting", ["linux"], indirect=True)
def test_systemd_is_asked_to_linger_and_where_it_may_not_the_cure_is_named(booting):
    (booting.tools / "no-linger").touch()
    assert "sudo loginctl enable-linger" in booting.boot("install")
    (booting.tools / "no-linger").unlink()
    assert "enable-linger" not in booting.boot("install")
    assert "lingers" in booting.boot("status")


@pytest.mark.parametrize("booting", ["linux"], indirect=True)
def test_without_systemd_it_is_refused_with_what_to_do_instead(booting):
    (booting.tools / "no-systemd").touch()
    output = booting.boot("install", code=3)
    assert "No medium found" in output
    assert "clusterctl up --foreground" in output
    assert not booting.state()["installed"]


@pytest.mark.parametrize("booting", ["darwin"], indirect=True)
def test_on_a_mac_what_was_not_tried_there_is_said_and_a_daemon_is_shown(booting):
    assert "not verified on a Mac" in booting.boot("install")
    output = booting.boot("show", "--daemon")
    assert "sudo launchctl bootstrap system /Library/LaunchDaemons/studiofleet" in output
    plist = plistlib.loads(output[output.index("<?xml") : output.index("</plist>") + 8].encode())
    assert plist["UserName"]
    assert "LimitLoadToSessionType" not in plist
