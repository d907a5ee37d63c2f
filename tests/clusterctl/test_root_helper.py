"""What the program that acts for root takes, and that nothing else gets past it, whoever reads it then."""

from __future__ import annotations

import os
import plistlib
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest

from clusterctl.launchd_plist import launchd_plist
from clusterctl.root_helper import RootHelper
from clusterctl.services import ServiceRefusedError, ServiceSpec

PREFIX = "/opt/studiofleet"
HELPER = RootHelper("studiofleet-0a1b2c3d", "fleet", PurePath(PREFIX, "state"), PurePath(PREFIX, "versions"))
LABEL = "studiofleet-0a1b2c3d.worker.qwen3-8b"
SPEC = ServiceSpec(
    label=LABEL,
    argv=(f"{PREFIX}/versions/1.0/bin/python", "-P", "-m", "worker", "--id", "qwen3-8b"),
    environ={"HOME": f"{PREFIX}/home", "LANG": "en_US.UTF-8"},
    folder=PurePath(PREFIX, "state"),
    log=PurePath(PREFIX, "state/logs/qwen3-8b.log"),
    stop_s=90,
    throttle_s=30,
    user="fleet",
    umask=0o077,
)
GOOD: dict[str, Any] = plistlib.loads(launchd_plist(SPEC))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With tools of launchd that note what they were told."""
    folder = tmp_path_factory.mktemp("helper")
    for tool in ("launchctl", "plutil"):
        (folder / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >>{folder}/calls\n')
        (folder / tool).chmod(0o755)
    (folder / "LaunchDaemons").mkdir()
    path = folder / "helper"
    mine = replace(
        HELPER, daemons=folder / "LaunchDaemons", search=f"{folder}:{HELPER.search}", user="nobody"
    )
    path.write_text(mine.text)
    path.chmod(0o755)
    return path


def tell(program: Path, *words: str, text: bytes = b"") -> tuple[int, str]:
    ended = subprocess.run([program, *words], input=text, capture_output=True, check=False)
    return ended.returncode, ended.stderr.decode() + ended.stdout.decode()


def check(program: Path, text: bytes, label: str = LABEL) -> tuple[int, str]:
    return tell(program, "check", label, text=text)


def written(**changed: Any) -> bytes:
    """The list as it is written, with keys changed, or left out (None)."""
    keys = {**GOOD, "UserName": "nobody", **changed}
    return plistlib.dumps({key: value for key, value in keys.items() if value is not None})


def test_what_clusterctl_writes_is_taken(program):
    assert check(program, written()) == (0, "")
    assert check(program, written(Umask=0o027, ExitTimeOut=300)) == (0, "")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"UserName": "root"}, "another user"),
        ({"UserName": "fleet"}, "another user"),
        ({"UserName": None}, "the key UserName is missing"),
        ({"GroupName": "wheel"}, "the key GroupName is not allowed"),
        ({"RootDirectory": "/tmp"}, "RootDirectory is not allowed"),
        ({"Program": "/bin/sh"}, "the key Program is not allowed"),
        ({"WatchPaths": ["/etc"]}, "WatchPaths is not allowed"),
        ({"HardResourceLimits": {"NumberOfFiles": 1}}, "HardResourceLimits is not allowed"),
        ({"SessionCreate": True}, "SessionCreate is not allowed"),
        ({"ProgramArguments": ["/bin/sh", "-c", "id"]}, "its program is not in"),
        ({"ProgramArguments": [f"{PREFIX}/versions/../../../bin/sh"]}, "its program is not in"),
        ({"ProgramArguments": [f"{PREFIX}/versions"]}, "its program is not in"),
        ({"ProgramArguments": [f"{PREFIX}/versions-of-mine/sh"]}, "its program is not in"),
        ({"ProgramArguments": []}, "not of our form"),
        ({"ProgramArguments": [f"{PREFIX}/versions/a\n\t</array>"]}, "not of our form"),
        ({"WorkingDirectory": "/"}, "its folder is not in"),
        ({"WorkingDirectory": f"{PREFIX}/state/./../.."}, "its folder is not in"),
        ({"StandardOutPath": "/etc/sudoers.d/mine"}, "its log is not in"),
        ({"StandardOutPath": f"{PREFIX}/state/../../../etc/x"}, "its log is not in"),
        ({"StandardErrorPath": "/etc/sudoers.d/mine"}, "two logs"),
        ({"EnvironmentVariables": {"DYLD_INSERT_LIBRARIES": "/x"}}, "DYLD_INSERT_LIBRARIES is not allowed"),
        ({"EnvironmentVariables": {"HOME": "\u00e9"}}, "other characters than ASCII"),
        ({"KeepAlive": True}, "not of our form"),
        ({"KeepAlive": {"SuccessfulExit": True}}, "not of our form"),
        ({"KeepAlive": {"PathState": {"/x": True}}}, "not of our form"),
        ({"RunAtLoad": False}, "not of our form"),
        ({"ProcessType": "Background"}, "not Interactive"),
        ({"Umask": 0}, "umask"),
        ({"ExitTimeOut": 0}, "from 1 to 300"),
        ({"ExitTimeOut": -1}, "is no number"),
        ({"ThrottleInterval": 0}, "from 1 to 3600"),
        ({"Label": f"{LABEL}-2"}, "another label"),
    ],
)
def test_a_list_that_says_anything_else_is_refused_with_the_reason(program, changed, why):
    code, said = check(program, written(**changed))
    assert code == 65
    assert why in said


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace(b"nobody", b"nobody\0</string><string>root"),
        lambda text: text.replace(b"nobody", b"&root;"),
        lambda text: text.replace(b"\t<key>Umask", b"\t<!-- --><key>Umask"),
        lambda text: text.replace(
            b"\t<key>Umask", b"\t<key>UserName</key>\n\t<string>root</string>\n\t<key>Umask"
        ),
        lambda text: text.replace(
            b"nobody</string>", b"nobody</string><key>UserName</key><string>root</string>"
        ),
        lambda text: text.replace(b'PropertyList-1.0.dtd">', b'PropertyList-1.0.dtd" [<!ENTITY a "b">]>'),
        lambda text: text + b"<plist/>",
        lambda text: text[:-9],
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: text.replace(b"\n", b"\r"),
        lambda text: plistlib.dumps(plistlib.loads(text), fmt=plistlib.FMT_BINARY),
        lambda text: text.replace(b"<dict>", b"<dict>" + b"\n" * 70_000, 1),
        lambda _text: b"",
    ],
)
def test_a_list_that_two_could_read_differently_is_refused(program, spoil):
    assert check(program, spoil(written()))[0] == 65


def test_whatever_is_taken_says_what_is_allowed(program):
    """Lines and bytes at random: what passes is read by another reader, and holds to the rules."""
    chance = random.Random(7)
    good = written()
    lines = good.splitlines(keepends=True)
    more = [b"\t<key>UserName</key>\n", b"\t<string>root</string>\n", b"\t\t<string>/bin/sh</string>\n"]
    taken = 0
    for _ in range(150):
        if chance.random() < 0.5:
            mutant = list(lines)
            mutant.insert(chance.randrange(len(mutant)), chance.choice([*lines, *more]))
            del mutant[chance.randrange(len(mutant))]
            text = b"".join(mutant)
        else:
            at = chance.randrange(len(good))
            text = good[:at] + chance.choice([b"", b"/", b"0", b"<", b"\n"]) + good[at + 1 :]
        if check(program, text)[0] != 0:
            continue
        taken += 1
        keys = plistlib.loads(text)
        assert (keys["Label"], keys["UserName"], keys.keys() - GOOD.keys()) == (LABEL, "nobody", set())
        assert os.path.normpath(keys["ProgramArguments"][0]).startswith(f"{PREFIX}/versions/")
        for key in ("StandardOutPath", "StandardErrorPath"):
            assert os.path.normpath(keys[key]).startswith(f"{PREFIX}/state/")
    assert taken  # so some of them did pass


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate", LABEL],
        ["kickstart", "-k"],
        ["kickstart", "-k", LABEL],
        ["bootout", LABEL, "system/com.apple.sshd"],
        ["bootout", "com.apple.sshd"],
        ["bootout", "studiofleet-0a1b2c3d.worker"],
        ["bootout", "studiofleet.worker.a"],
        ["bootout", "studiofleet-0a1b2c3dXworker.a"],
        ["bootout", f"{LABEL}\ncom.apple.sshd"],
        ["remove", "studiofleet-0a1b2c3d.worker.a/../../../../etc/passwd"],
        ["remove", "../studiofleet-0a1b2c3d.worker.a"],
        ["remove", "studiofleet-0a1b2c3d.worker.*"],
        ["show", "studiofleet-0a1b2c3d.worker.a b"],
        ["print", "studiofleet-0a1b2c3d.worker.$(id)"],
        ["print", f"{LABEL}{'a' * 120}"],
        ["list", LABEL],
        ["uninstall", LABEL],
        ["install", "--", LABEL],
    ],
)
def test_no_other_verb_and_no_other_label(program, words):
    calls = program.with_name("calls")
    before = calls.read_text() if calls.exists() else ""
    assert tell(program, *words)[0] == 64
    assert (calls.read_text() if calls.exists() else "") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root")
def test_a_link_in_the_place_of_a_list_is_replaced_not_followed(program, tmp_path):
    place = program.with_name("LaunchDaemons") / f"{LABEL}.plist"
    (tmp_path / "theirs").write_text("untouched")
    place.symlink_to(tmp_path / "theirs")
    assert tell(program, "install", LABEL, text=written()) == (0, "")
    assert (tmp_path / "theirs").read_text() == "untouched"
    assert not place.is_symlink()
    assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (0, 0o644)
    assert tell(program, "list") == (0, f"{LABEL}\n")
    assert tell(program, "install", LABEL, text=written(UserName="root"))[0] == 65
    assert plistlib.loads(place.read_bytes())["UserName"] == "nobody"
    assert tell(program, "remove", LABEL) == (0, "")
    assert list(place.parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_who_is_not_root_may_only_look(program):
    for verb in (
        "install",
        "bootstrap",
        "bootout",
        "kickstart",
        "terminate",
        "hangup",
        "remove",
        "uninstall",
    ):
        words = [verb] if verb == "uninstall" else [verb, LABEL]
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-s", *words]
        ended = subprocess.run(as_nobody, input=program.read_bytes(), capture_output=True, check=False)
        assert ended.returncode == 77, verb


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"user": "root"}, "log in as a user of their own"),
        ({"user": "ALL"}, "log in as a user of their own"),
        ({"user": "%admin"}, "log in as a user of their own"),
        ({"user": "a ALL=(ALL) ALL\n#"}, "log in as a user of their own"),
        ({"name": "studiofleet/../x"}, "no name of an installation"),
        ({"home": PurePath("/opt/it's")}, "cannot be a folder"),
        ({"programs": PurePath("/opt/../bin")}, "cannot be a folder"),
        ({"programs": PurePath("/")}, "cannot be a folder"),
    ],
)
def test_nothing_odd_gets_into_the_program(changed, why):
    with pytest.raises(ServiceRefusedError, match=why):
        replace(HELPER, **changed)


@pytest.mark.parametrize("helper", [HELPER, replace(HELPER, helpers=PurePath("/Library/Our Helpers"))])
def test_visudo_takes_the_line_for_sudo(helper, tmp_path):
    visudo = shutil.which("visudo", path="/usr/sbin:/usr/local/sbin:/sbin")
    if visudo is None:
        pytest.skip("visudo is not installed (in Debian's package sudo)")
    file = tmp_path / "line"
    file.write_text(helper.sudoers_text)
    file.chmod(0o440)
    ended = subprocess.run([visudo, "-cf", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_line_for_sudo_lets_one_user_run_one_program():
    assert HELPER.sudoers_text.splitlines()[1:] == [
        "Defaults!/Library/PrivilegedHelperTools/studiofleet-0a1b2c3d env_reset, !setenv",
        "fleet ALL=(root) NOPASSWD: NOSETENV: /Library/PrivilegedHelperTools/studiofleet-0a1b2c3d",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="what acts for root has to be root")
def test_it_is_installed_as_a_whole_or_not_at_all(tmp_path):
    tmp_path.chmod(0o755)
    visudo = tmp_path / "visudo"
    mine = replace(
        HELPER,
        helpers=tmp_path / "helpers",
        sudoers_folder=tmp_path / "sudoers.d",
        search=f"{tmp_path}:{HELPER.search}",
    )
    places = [Path(mine.path), Path(mine.sudoers)]

    def run() -> tuple[int, str]:
        ended = subprocess.run(["sh", "-c", mine.installer], capture_output=True, text=True, check=False)
        return ended.returncode, ended.stderr

    visudo.write_text("#!/bin/sh\nexit 1\n")
    visudo.chmod(0o755)
    assert run()[0] != 0
    assert [list(place.parent.iterdir()) for place in places] == [[], []]

    visudo.write_text("#!/bin/sh\nexit 0\n")
    places[0].parent.chmod(0o777)
    assert "others than root may write to" in run()[1]
    assert [list(place.parent.iterdir()) for place in places] == [[], []]

    places[0].parent.chmod(0o755)
    assert run() == (0, "")
    assert [place.stat().st_mode & 0o777 for place in places] == [0o755, 0o440]
    assert [place.read_text() for place in places] == [mine.text, mine.sudoers_text]
