"""Looks for what is wrong with a machine and the home on it, repairs what is safe, writes reports."""

from __future__ import annotations

import getpass
import platform
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from clusterctl import checks_home, checks_launchd, checks_mac, checks_machine, checks_processes
from clusterctl.diagnosis import Check, Finding, Fix, Level, diagnose
from clusterctl.facts import Facts
from clusterctl.runner import Runner
from clusterctl.sweeping import sweep_process
from clusterctl.transcripts import Call, Censor
from protocol.addresses import Home

CHECKS: tuple[Check, ...] = (
    *checks_home.CHECKS,
    *checks_processes.CHECKS,
    *checks_machine.CHECKS,
    *checks_mac.CHECKS,
    *checks_launchd.CHECKS,
)


def examine(facts: Facts) -> list[Finding]:
    """What all checks find, the worst first."""
    return diagnose(CHECKS, facts)


def repair(runner: Runner, home: Home, findings: Iterable[Finding]) -> list[tuple[Finding, str]]:
    """Do what is safe; for each finding that brought a fix, why it failed, or nothing."""
    return [(it, _repair(runner, home, it.fix)) for it in findings if it.fix is not None]


def _repair(runner: Runner, home: Home, fix: Fix) -> str:
    if fix.sweep:
        sweep_process(home, fix.sweep)
        return ""
    ended = runner.run(fix.argv)
    return "" if ended.code == 0 else ended.words


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.ERROR for finding in findings)


def document(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "id": it.id,
            "level": it.level,
            "cause": it.cause,
            "cure": it.cure,
            "fix": it.fix.words if it.fix else None,
        }
        for it in findings
    ]


def report(facts: Facts, findings: Sequence[Finding], calls: Iterable[Call]) -> dict[str, Any]:
    """What somebody can send to others: which programs said what, without names, keys and environments."""
    censor = Censor(facts.user_folder, getpass.getuser(), socket.gethostname().partition(".")[0])
    return {
        "studiofleet": facts.home.version,
        "python": platform.python_version(),
        "system": platform.platform(),
        "at": facts.now,
        "findings": [{"id": it.id, "level": it.level, "cause": censor(it.cause)} for it in findings],
        "calls": [
            {
                "argv": [censor(word) for word in call.argv],
                "code": call.ended.code,
                "out": censor(call.ended.out),
                "err": censor(call.ended.err),
            }
            for call in calls
        ],
    }
