"""What tells systemd or launchd to start a home's cluster: a unit file, a property list. Pure.

Both run `clusterctl up --foreground`, whose supervisor goes on doing its work: they start it, start it
again when it fails, and tell it to end.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterctl.launchd_plist import launchd_plist
from clusterctl.launching import specs_of
from clusterctl.services import ServiceSpec
from clusterctl.supervision import KILL_GRACE_S
from clusterctl.systemd_unit import systemd_unit
from protocol.config import ClusterConfig

NAME = "studiofleet"
PAUSE_S = 10
"""Before the supervisor is started again when it failed; launchd also starts nothing more often."""
_MARGIN_S = 20
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class BootPlan:
    """What is started for one home, and how long it may take to end."""

    name: str
    """Of the unit: one for each home."""
    command: tuple[str, ...]
    environ: Mapping[str, str]
    folder: Path
    log: Path
    stop_s: int
    user: str = ""
    """Empty: by whoever logs in; else by the system, as this user, whoever is logged in."""


def unit_name(home: Path, default: Path) -> str:
    """`studiofleet` for the default home, else with an ending more."""
    if home == default:
        return NAME
    return f"{NAME}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"


def boot_command(python: str, config_file: Path) -> tuple[str, ...]:
    return (python, "-P", "-m", "clusterctl.cli", "up", "--foreground", "--config", str(config_file))


def boot_environment(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Of a settled environment, what does not depend on the shell that happens to be used."""
    kept = ("STUDIOFLEET_HOME", "STUDIOFLEET_MODELS", "PYTHONPATH")
    chosen = {key: environ[key] for key in kept if environ.get(key)}
    return {**chosen, "PATH": f"{Path(python).parent}:{_PATH}"}


def stop_limit_s(config: ClusterConfig) -> int:
    """All processes drain at once; who does not end is killed by the supervisor after its grace."""
    longest = max(spec.drain_s for spec in specs_of(config))
    return math.ceil(longest + KILL_GRACE_S + _MARGIN_S)


def boot_unit(plan: BootPlan) -> str:
    """A service for systemd.

    KillMode=process: only the supervisor is told to end, so that the others get their drain; and when
    it is killed they go on serving, and the next one adopts them. 2 and 3 (refused by a check) need a
    person.
    """
    others = {
        "Description": f"Studiofleet cluster in {str(plan.folder).replace('%', '%%')}",
        "RestartPreventExitStatus": "2 3",
        "KillMode": "process",
    }
    return systemd_unit(_service_of(plan), others)


def launchd_job(plan: BootPlan) -> bytes:
    """An agent for launchd, or a daemon when the plan names a user.

    launchd ends what is left of its process group only; workers lead groups of their own, so that
    they outlive a killed supervisor.
    """
    return launchd_plist(_service_of(plan))


def _service_of(plan: BootPlan) -> ServiceSpec:
    return ServiceSpec(
        label=plan.name,
        argv=plan.command,
        environ=plan.environ,
        folder=plan.folder,
        log=plan.log,
        stop_s=plan.stop_s,
        throttle_s=PAUSE_S,
        user=plan.user,
        umask=0o077,
    )
