"""Another installation of clusterctl takes over what the present one has started."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from tests.integration.operating import operating

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def another_installation(folder: Path) -> Path:
    """A Python of its own, with the packages of this one."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], check=True)
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    places = (sysconfig.get_path("purelib"), ROOT, ROOT / "deploy")
    Path(purelib, "packages.pth").write_text("".join(f"{place}\n" for place in places))
    return folder / "bin" / "python"


def test_a_restart_by_another_installation_starts_that_one_and_leaves_the_others_alone(tmp_path):
    python = another_installation(tmp_path / "other")
    with operating() as operator:
        operator.init("fake-1", "fake-2")
        operator.environ["MARK"] = "of the first"
        operator.run("up", "--wait")
        before = {name: operator.worker(name)["pid"] for name in ("fake-1", "fake-2")}
        subprocess.run(
            [python, "-P", "-m", "clusterctl.cli", "restart", "fake-1", "--wait"],
            env={**operator.environ, "MARK": "of the second"},
            check=True,
            timeout=100,
        )
        moved = psutil.Process(operator.worker("fake-1")["pid"])
        assert moved.pid != before["fake-1"]
        assert moved.cmdline()[0] == str(python)
        assert moved.environ()["MARK"] == "of the first"
        assert operator.worker("fake-2")["pid"] == before["fake-2"]
        assert operator.worker("fake-2")["restarts"] == 0
        operator.run("up", "--wait")  # back again
        assert operator.worker("fake-1")["pid"] == moved.pid
        operator.run("restart", "fake-1", "--wait")
        assert psutil.Process(operator.worker("fake-1")["pid"]).cmdline()[0] == sys.executable
        pids = operator.pids()
        operator.run("down")
        operator.nothing_is_left(pids)
