"""The facts of a machine, each read by running one of its own programs. What fails is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from clusterctl import machine_memory
from clusterctl.facts import MAC, Job, Mac, Machine
from clusterctl.mac_readings import (
    job_of,
    parse_blocked,
    parse_pairs,
    parse_power,
    parse_switch,
    parse_wired,
    recent_panics,
)
from clusterctl.runner import Runner

FIREWALL = "/usr/libexec/ApplicationFirewall/socketfilterfw"
REPORTS = "/Library/Logs/DiagnosticReports"
_UPDATES = ("/Library/Preferences/com.apple.SoftwareUpdate", "AutomaticallyInstallMacOSUpdates")
_SYSTEMD_RUNS = ("running", "degraded", "starting", "initializing", "maintenance")


@dataclass(frozen=True)
class Questions:
    """What the machine is asked about."""

    now: datetime
    folders: tuple[Path, ...]
    """Whose free room is of interest."""
    unit: str
    """The name of the unit, or job, that starts the cluster at boot."""
    labels: tuple[str, ...]
    """Of further jobs of launchd."""
    python: Path
    """The one that runs gateways and workers."""


def read_machine(runner: Runner, asked: Questions) -> Machine:
    """Raises what the runner raises when the machine cannot be reached."""
    system, _, arch = _said(runner, "uname", "-sm").partition(" ")
    free = {folder: room for folder in asked.folders if (room := _free(runner, folder)) is not None}
    descriptors = _said(runner, "sh", "-c", "ulimit -Hn")
    mac = _mac(runner, asked) if system == MAC else None
    return Machine(
        system=system,
        arch=arch,
        memory=machine_memory.read_machine(runner, str(asked.python)),
        descriptors=_number(descriptors),
        free_bytes=free,
        boot_unit=_starts_at_boot(runner, asked.unit) if mac is None else bool(mac.jobs),
        mac=mac,
    )


def _said(runner: Runner, *argv: str) -> str:
    """What it printed; empty when it failed."""
    ended = runner.run(argv)
    return ended.out.strip() if ended.code == 0 else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _free(runner: Runner, folder: Path) -> int | None:
    for place in (folder, *folder.parents):
        lines = _said(runner, "df", "-Pk", str(place)).splitlines()
        words = lines[-1].split() if lines else []
        # The name of the file system may have spaces in it: the figures are counted from the percentage.
        at = next((index for index, word in enumerate(words) if re.fullmatch(r"\d+%", word)), 0)
        if at >= 1 and words[at - 1].isdigit():
            return int(words[at - 1]) * 1024
    return None


def _starts_at_boot(runner: Runner, unit: str) -> bool | None:
    for scope in (("--user",), ()):
        if runner.run(("systemctl", *scope, "is-enabled", f"{unit}.service")).code == 0:
            return True
    state = runner.run(("systemctl", "--user", "is-system-running")).out.strip()
    return False if state in _SYSTEMD_RUNS else None


def _mac(runner: Runner, asked: Questions) -> Mac:
    version = parse_pairs(_said(runner, "sw_vers"))
    updates = _said(runner, "defaults", "read", *_UPDATES)
    return Mac(
        version=version.get("ProductVersion", ""),
        build=version.get("BuildVersion", ""),
        translated=_said(runner, "sysctl", "-n", "sysctl.proc_translated") == "1",
        power=parse_power(_said(runner, "pmset", "-g")),
        filevault=parse_switch(_said(runner, "fdesetup", "status")),
        installs_updates=updates == "1" if updates else None,
        firewall=parse_switch(_said(runner, FIREWALL, "--getglobalstate")),
        firewall_blocks=parse_blocked(
            _said(runner, FIREWALL, "--getappblocked", str(asked.python.resolve()))
        ),
        wired_bytes=parse_wired(_said(runner, "vm_stat")),
        panics=recent_panics(_said(runner, "ls", "-1", REPORTS), asked.now),
        jobs=tuple(_jobs(runner, (asked.unit, *asked.labels))),
    )


def _jobs(runner: Runner, labels: Sequence[str]) -> Iterable[Job]:
    user = _said(runner, "id", "-u")
    for label in labels:
        for domain in ("system", f"gui/{user}"):
            printed = runner.run(("launchctl", "print", f"{domain}/{label}"))
            if printed.code != 0:
                continue
            path = re.search(r"^\tpath = (.+)$", printed.out, re.MULTILINE)
            written = runner.run(("cat", path[1])) if path else None
            text = written.out if written is not None and written.code == 0 else None
            yield job_of(label, domain, printed.out, text)
