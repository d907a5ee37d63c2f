from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.runner import NOT_FOUND, Ended
from clusterctl.services import ServiceRefusedError, ServiceSpec, ServiceState
from clusterctl.systemd import Systemd, system_manager, user_manager
from clusterctl.systemd_show import parse_show
from clusterctl.systemd_unit import KEY_FORMS, systemd_unit
from tests.clusterctl.recorded import RecordedRunner

SPEC = ServiceSpec(
    label="studiofleet.worker.smol-1",
    argv=("/opt/studiofleet/versions/1/bin/python", "-m", "worker", "--id", "smol-1"),
    environ={"HOME": "/opt/studiofleet/home"},
    folder=PurePath("/opt/studiofleet/state/smol-1"),
    log=PurePath("/opt/studiofleet/log/smol-1.log"),
    stop_s=90,
    throttle_s=30,
    user="ada",
    group="staff",
)
UNIT = """\
[Unit]
Description=studiofleet.worker.smol-1
StartLimitIntervalSec=0

[Service]
Type=exec
User=ada
Group=staff
ExecStart=/opt/studiofleet/versions/1/bin/python -m worker --id smol-1
WorkingDirectory=/opt/studiofleet/state/smol-1
Environment=HOME=/opt/studiofleet/home
UMask=0027
StandardOutput=append:/opt/studiofleet/log/smol-1.log
StandardError=append:/opt/studiofleet/log/smol-1.log
RemainAfterExit=yes
Restart=on-failure
RestartSec=30
KillMode=mixed
TimeoutStopSec=90
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
"""
SHOWN = """\
LoadState=loaded
ActiveState=active
UnitFileState=enabled
NeedDaemonReload=no
FragmentPath=/etc/systemd/system/smol-1.service
MainPID=4121
NRestarts=2
ExecMainStartTimestampMonotonic=99
ExecMainCode=0
ExecMainStatus=0
Result=success
TimeoutStopUSec=1min 30s
RestartUSec=1s 500ms
"""


def test_a_service_is_what_was_thought_through():
    assert systemd_unit(SPEC) == UNIT


def test_a_user_has_a_unit_of_the_own_manager():
    unit = systemd_unit(replace(SPEC, user="", group=""))
    assert "User=" not in unit
    assert "WantedBy=default.target" in unit


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_whatever_a_word_is_no_line_is_added(word):
    try:
        unit = systemd_unit(replace(SPEC, argv=(*SPEC.argv, word), environ={"WORD": word}))
    except ServiceRefusedError:
        assert not word.isprintable() or "secret" in word.lower() or "-" in word
        return
    keys = [line.partition("=")[0] for line in unit.split("\n") if line and not line.startswith("[")]
    known = {key for forms in KEY_FORMS.values() for key in forms}
    assert set(keys) <= known
    assert len(keys) == len(UNIT.splitlines()) - 5


@pytest.mark.parametrize(
    "changed",
    [
        {"folder": PurePath("/srv/a\nExecStartPre=/bin/sh")},
        {"log": PurePath("/srv/a\rb")},
        {"user": "ada\nUser=root"},
        {"group": "no group"},
    ],
)
def test_what_would_be_another_line_is_refused(changed):
    with pytest.raises(ServiceRefusedError, match="cannot be written"):
        systemd_unit(replace(SPEC, **changed))


def test_what_systemd_tells_of_one_that_runs():
    shown = parse_show(SHOWN)
    assert (shown.is_up, shown.is_current) == (True, True)
    assert shown.state == ServiceState(
        loaded=True,
        running=True,
        pid=4121,
        runs=3,
        exit_timeout_s=90,
        throttle_s=2,
        path="/etc/systemd/system/smol-1.service",
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ActiveState": "activating", "ExecMainCode": "1", "ExecMainStatus": "75"}, (True, 75, "")),
        ({"ActiveState": "inactive", "ExecMainCode": "1"}, (False, 0, "")),
        ({"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}, (False, None, "SIGKILL")),
        ({"ActiveState": "failed", "ExecMainCode": "3", "ExecMainStatus": "6"}, (False, None, "SIGABRT")),
    ],
)
def test_what_systemd_tells_of_one_that_ended(changed, told):
    text = SHOWN
    for key, value in {**changed, "MainPID": "0"}.items():
        text = re.sub(rf"^{key}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
    shown = parse_show(text)
    assert (shown.is_up, shown.state.last_exit, shown.state.last_signal) == told
    assert (shown.state.running, shown.state.pid) == (False, None)


def test_a_time_without_end_is_none():
    assert parse_show("TimeoutStopUSec=infinity").state.exit_timeout_s is None


@pytest.mark.parametrize("change", ["NeedDaemonReload=yes", "UnitFileState=disabled"])
def test_what_would_be_another_service_after_boot_is_not_current(change):
    key = change.partition("=")[0]
    assert not parse_show(re.sub(rf"^{key}=.*$", change, SHOWN, flags=re.MULTILINE)).is_current


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(NOT_FOUND), "no systemctl"),
        (Ended(1, err="Failed to connect to bus: No medium found"), "for this user: Failed .*ssh, not su"),
    ],
)
def test_without_a_systemd_nothing_is_done(ended, words):
    class Without(RecordedRunner):
        def run(self, argv, *, stdin=b"", limit_s=1.0):
            self.asked.append(tuple(argv))
            return ended

    runner = Without({})
    with pytest.raises(ServiceRefusedError, match=words):
        Systemd(runner, user_manager(PurePath("/config"))).install(replace(SPEC, user="", group=""))
    assert [argv[0] for argv in runner.asked] == ["cat", "systemctl"]


def test_the_system_needs_a_user_and_a_users_manager_has_one_only():
    with pytest.raises(ServiceRefusedError, match="needs a user"):
        Systemd(RecordedRunner({}), system_manager()).install(replace(SPEC, user="", group=""))
    with pytest.raises(ServiceRefusedError, match="its user alone"):
        Systemd(RecordedRunner({}), user_manager(PurePath("/config"))).install(SPEC)
