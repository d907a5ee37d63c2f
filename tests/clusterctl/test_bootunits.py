import plistlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.bootunits import (
    BootPlan,
    boot_command,
    boot_environment,
    boot_unit,
    launchd_job,
    stop_limit_s,
    unit_name,
)
from protocol.config import parse

GOLDEN = Path(__file__).parents[1] / "golden" / "boot"
HOME = Path("/srv/ada/.studiofleet")
PYTHON = "/opt/fleet/.venv/bin/python"
PLAN = BootPlan(
    name="studiofleet",
    command=boot_command(PYTHON, HOME / "cluster.toml"),
    environ=boot_environment({"STUDIOFLEET_HOME": str(HOME), "STUDIOFLEET_MODELS": "/srv/models"}, PYTHON),
    folder=HOME,
    log=HOME / "logs" / "supervisor.log",
    stop_s=90,
)
STRANGE = '/srv/ä "b" c%d $HOME \\e'
STRANGE_PLAN = replace(
    PLAN,
    command=boot_command(PYTHON, Path(STRANGE) / "cluster.toml"),
    environ={"STUDIOFLEET_HOME": STRANGE},
    folder=Path(STRANGE),
    log=Path(STRANGE) / "logs" / "supervisor.log",
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("studiofleet.service", boot_unit(PLAN).encode()),
        ("studiofleet-daemon.service", boot_unit(replace(PLAN, user="ada")).encode()),
        ("studiofleet.plist", launchd_job(PLAN)),
        ("studiofleet-daemon.plist", launchd_job(replace(PLAN, user="ada"))),
    ],
)
def test_a_unit_is_what_was_thought_through(name, text):
    assert text.decode() == (GOLDEN / name).read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
@pytest.mark.parametrize("user", ["", "root"])
@pytest.mark.parametrize("strange", [False, True])
def test_systemd_understands_it(tmp_path, user, strange):
    plan = STRANGE_PLAN if strange else PLAN
    plan = replace(plan, command=(shutil.which("true") or "", *plan.command[1:]), user=user)
    unit = tmp_path / "studiofleet.service"
    unit.write_text(boot_unit(plan))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_systemd_gets_strange_paths_as_they_are():
    lines = boot_unit(STRANGE_PLAN).splitlines()
    escaped = r"/srv/ä \"b\" c%%d $HOME \\e"
    assert f'Environment="STUDIOFLEET_HOME={escaped}"' in lines
    command = next(line for line in lines if line.startswith("ExecStart="))
    assert command.endswith(f'--config "{escaped.replace("$", "$$")}/cluster.toml"')
    assert "WorkingDirectory=" + STRANGE.replace("%", "%%") in lines


def test_launchd_gets_strings_in_its_environment_and_strange_paths_as_they_are():
    plist = plistlib.loads(launchd_job(STRANGE_PLAN))
    assert plist["EnvironmentVariables"] == {"STUDIOFLEET_HOME": STRANGE}
    assert plist["ProgramArguments"][-1] == f"{STRANGE}/cluster.toml"


def test_each_home_has_a_unit_of_its_own():
    default = Path("/srv/ada/.studiofleet")
    assert unit_name(default, default) == "studiofleet"
    others = {unit_name(Path(f"/srv/{name}"), default) for name in "abc"}
    assert len(others) == 3
    assert all(name.startswith("studiofleet-") for name in others)


def test_the_stop_takes_as_long_as_the_longest_drain_and_what_comes_after():
    text = 'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n[limits]\ndrain_timeout_s = {}\n'
    text += '[[workers]]\nid = "w"\nmodel = "m"\nengine = "fake"\ndrain_timeout_s = {}\n'
    assert stop_limit_s(parse(text.format(5, 100.5))) == 131
    assert stop_limit_s(parse(text.format(200, 1))) == 230


def test_the_environment_does_not_depend_on_the_shell():
    environ = {"PATH": "/somewhere", "STUDIOFLEET_HOME": "/h", "PYTHONPATH": "", "SECRET": "x"}
    assert boot_environment(environ, "/v/bin/python") == {
        "STUDIOFLEET_HOME": "/h",
        "PATH": "/v/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }
