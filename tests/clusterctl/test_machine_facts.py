"""The facts of machines that are recorded. Those of Macs are synthetic, after what others have logged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from clusterctl import machine_memory
from clusterctl.facts import Machine
from clusterctl.mac_readings import (
    job_of,
    parse_blocked,
    parse_power,
    parse_switch,
    parse_wired,
    recent_panics,
)
from clusterctl.machine_facts import FIREWALL, REPORTS, Questions, read_machine
from clusterctl.memory_fit import Machine as Memory
from clusterctl.runner import NOT_FOUND, Ended
from tests.clusterctl.recorded import RecordedRunner

NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
MODELS = Path("/opt/models")
ASKED = Questions(now=NOW, folders=(MODELS,), unit="studiofleet", labels=(), python=Path("/opt/python"))
DF = """Filesystem     1024-blocks      Used Available Capacity  Mounted on
/dev/disk3s5   1948455240 421020432 1520310200    22%    /System/Volumes/Data
"""
GONE = Ended(NOT_FOUND)
COULD_NOT_FIND = Ended(113, err='Could not find service "studiofleet" in domain for system')
PRINTED = """system/studiofleet = {
\tactive count = 1
\tpath = /Library/LaunchDaemons/studiofleet.plist
\tstate = running
\tenvironment = {
\t\texit timeout = 3
\t}
\tminimum runtime = 10
\texit timeout = 5
\tpid = 4121
\tresource coalition = {
\t\tstate = active
\t}
\tspawn type = daemon (3)
}
"""
PLIST = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0"><dict>
<key>Label</key><string>studiofleet</string>
<key>ExitTimeOut</key><integer>90</integer>
<key>ThrottleInterval</key><integer>10</integer>
</dict></plist>
"""
A_MAC = {
    ("uname", "-sm"): Ended(0, "Darwin arm64\n"),
    ("df", "-Pk", "/opt/models"): Ended(1, err="df: /opt/models: No such file or directory"),
    ("df", "-Pk", "/opt"): Ended(0, DF),
    ("sh", "-c", "ulimit -Hn"): Ended(0, "unlimited\n"),
    ("sysctl", "-n", "hw.memsize"): Ended(0, "274877906944\n"),
    ("sysctl", "-n", "iogpu.wired_limit_mb"): Ended(0, "200000\n"),
    ("sysctl", "-n", "sysctl.proc_translated"): Ended(1, "", "sysctl: unknown oid"),
    ("/opt/python", "-P", "-c", machine_memory._ASKS_METAL): Ended(0, "recommended 206158430208\n"),
    ("sw_vers",): Ended(0, "ProductName:\t\tmacOS\nProductVersion:\t\t26.5.2\nBuildVersion:\t\t25F84\n"),
    ("pmset", "-g"): Ended(0, "Currently in use:\n sleep                1 (sleep prevented by powerd)\n"),
    ("fdesetup", "status"): Ended(0, "FileVault is On.\n"),
    (
        "defaults",
        "read",
        "/Library/Preferences/com.apple.SoftwareUpdate",
        "AutomaticallyInstallMacOSUpdates",
    ): Ended(0, "1\n"),
    (FIREWALL, "--getglobalstate"): Ended(0, "Firewall is enabled. (State = 1)\n"),
    (FIREWALL, "--getappblocked", "/opt/python"): Ended(
        0, "Incoming connection to the application is blocked\n"
    ),
    ("vm_stat",): Ended(
        0, "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages wired down:   65536.\n"
    ),
    ("ls", "-1", REPORTS): Ended(0, "panic-full-2026-12-01-101010.0002.panic\nSiri_2026-12-01-101010.ips\n"),
    ("id", "-u"): Ended(0, "501\n"),
    ("launchctl", "print", "system/studiofleet"): Ended(0, PRINTED),
    ("launchctl", "print", "gui/501/studiofleet"): COULD_NOT_FIND,
    ("cat", "/Library/LaunchDaemons/studiofleet.plist"): Ended(0, PLIST),
}


def test_a_mac_is_read():
    machine = read_machine(RecordedRunner(A_MAC), ASKED)
    assert (machine.system, machine.arch) == ("Darwin", "arm64")
    assert machine.memory == Memory("studio-1", 256 << 30, 192 << 30, 200000 << 20)
    assert machine.free_bytes == {MODELS: 1520310200 * 1024}
    assert (machine.descriptors, machine.boot_unit) == (None, True)
    mac = machine.mac
    assert mac is not None
    assert (mac.version, mac.build, mac.translated) == ("26.5.2", "25F84", False)
    assert (mac.power, mac.filevault, mac.installs_updates) == ({"sleep": "1"}, True, True)
    assert (mac.firewall, mac.firewall_blocks) == (True, True)
    assert mac.wired_bytes == 1 << 30
    assert mac.panics == ("panic-full-2026-12-01-101010.0002.panic",)
    job = mac.jobs[0]
    assert (job.domain, job.loaded.exit_timeout_s, job.exit_timeout_s) == ("system", 5, 90)
    assert (job.loaded.throttle_s, job.throttle_s, job.loaded.spawn_type) == (10, 10, "daemon")


def test_a_mac_on_which_no_tool_works_has_no_facts():
    silent = {call: GONE for call in A_MAC if call[0] not in ("uname", "cat")} | {
        ("uname", "-sm"): Ended(0, "Darwin arm64\n"),
        ("df", "-Pk", "/"): GONE,
        ("cat", "/proc/meminfo"): GONE,
        ("launchctl", "print", "gui//studiofleet"): COULD_NOT_FIND,
    }
    machine = read_machine(RecordedRunner(silent), ASKED)
    mac = machine.mac
    assert mac is not None
    known = [mac.filevault, mac.installs_updates, mac.firewall, mac.firewall_blocks, mac.wired_bytes]
    assert [*known, machine.memory, machine.descriptors] == [None] * 7
    assert (mac.power, mac.panics, mac.jobs, machine.free_bytes) == ({}, (), (), {})


def linux(enabled: int, state: str) -> Machine:
    unit = "studiofleet.service"
    answers = {
        ("uname", "-sm"): Ended(0, "Linux x86_64\n"),
        ("df", "-Pk", "/opt/models"): Ended(0, DF.replace("/dev/disk3s5", "//nas/with a name")),
        ("sh", "-c", "ulimit -Hn"): Ended(0, "1024\n"),
        ("sysctl", "-n", "hw.memsize"): GONE,
        ("cat", "/proc/meminfo"): Ended(0, "MemTotal:       24684084 kB\n"),
        ("systemctl", "--user", "is-enabled", unit): Ended(enabled),
        ("systemctl", "is-enabled", unit): Ended(1),
        ("systemctl", "--user", "is-system-running"): Ended(1, state),
    }
    return read_machine(RecordedRunner(answers), ASKED)


@pytest.mark.parametrize(
    ("enabled", "state", "boot_unit"),
    [(0, "running\n", True), (1, "running\n", False), (1, "degraded\n", False), (1, "offline\n", None)],
)
def test_a_linux_machine_is_read(enabled, state, boot_unit):
    machine = linux(enabled, state)
    assert (machine.system, machine.descriptors) == ("Linux", 1024)
    assert machine.memory == Memory("studio-1", 24684084 * 1024)
    assert machine.free_bytes == {MODELS: 1520310200 * 1024}
    assert (machine.boot_unit, machine.mac) == (boot_unit, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FileVault is On.", True),
        ("FileVault is Off.", False),
        ("Firewall is enabled. (State = 1)", True),
        ("Firewall is blocking all non-essential incoming connections. (State = 2)", True),
        ("Firewall is disabled. (State = 0)", False),
        ("Error: something", None),
    ],
)
def test_a_switch_is_on_off_or_unknown(text, expected):
    assert parse_switch(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Incoming connection to the application is permitted", False),
        ("Incoming connection to the application is blocked", True),
        ("/opt/python is not part of the firewall", True),
        ("", None),
    ],
)
def test_what_comes_in_is_blocked_or_not(text, expected):
    assert parse_blocked(text) is expected


def test_settings_of_power_are_those_in_use():
    text = "System-wide power settings:\nCurrently in use:\n Sleep On Power Button 1\n sleep   0\n womp   1\n"
    assert parse_power(text) == {"Sleep": "On", "sleep": "0", "womp": "1"}


def test_memory_of_which_nothing_is_told():
    assert parse_wired("Pages wired down: 12.") is None


def test_only_panics_of_the_last_days_count():
    names = "\n".join(
        [
            "panic-full-2026-11-28-101010.panic",
            "Kernel_2026-11-30-101010_studio-1.panic",
            "python3_2026-12-01-101010_studio-1.crash",
            "odd.panic",
        ]
    )
    assert recent_panics(names, NOW) == ("Kernel_2026-11-30-101010_studio-1.panic",)


@pytest.mark.parametrize("written", [None, "no list at all"])
def test_a_list_that_cannot_be_read_tells_nothing(written):
    job = job_of("studiofleet", "system", PRINTED, written)
    assert (job.exit_timeout_s, job.throttle_s, job.list_is_there) == (None, None, written is not None)
    assert job.loaded.exit_timeout_s == 5
