"""A service as launchd reads it: a property list. Pure.

Keys and types are those of launchd.plist(5); what is in none of these tables is not written.
"""

from __future__ import annotations

import math
import plistlib
from typing import Any

from clusterctl.services import ServiceSpec

KEY_TYPES: dict[str, type] = {
    "Label": str,
    "ProgramArguments": list,
    "UserName": str,
    "GroupName": str,
    "LimitLoadToSessionType": list,
    "WorkingDirectory": str,
    "EnvironmentVariables": dict,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "ProcessType": str,
    "Umask": int,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}
"""All that is ever written."""
_MARGIN_S = 30
_LEAST_S = 45
_MOST_S = 300
"""launchd's own default is 5 s; without a limit, a service could keep a Mac from shutting down."""


def exit_timeout_s(drain_s: float) -> int:
    """What a process that drains for so long is granted between SIGTERM and SIGKILL."""
    return min(_MOST_S, max(_LEAST_S, math.ceil(drain_s) + _MARGIN_S))


def launchd_plist(spec: ServiceSpec) -> bytes:
    """A daemon when the spec names a user, else an agent.

    SuccessfulExit alone: each key of KeepAlive is a reason of its own to start again. ExitTimeOut: a
    killed process of Metal may leave its memory wired. ProcessType: anything else is throttled, the
    GPU too. No limits of resources: for a daemon they would be those of the whole machine.
    """
    return plistlib.dumps(_keys(spec), sort_keys=True)


def _keys(spec: ServiceSpec) -> dict[str, Any]:
    whose: dict[str, Any] = {"LimitLoadToSessionType": ["Aqua", "Background"]}
    if spec.user:
        whose = {"UserName": spec.user, **({"GroupName": spec.group} if spec.group else {})}
    return {
        "Label": spec.label,
        "ProgramArguments": list(spec.argv),
        **whose,
        "WorkingDirectory": str(spec.folder),
        "EnvironmentVariables": dict(spec.environ),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": spec.throttle_s,
        "ExitTimeOut": spec.stop_s,
        "ProcessType": "Interactive",
        "Umask": spec.umask,
        "StandardOutPath": str(spec.log),
        "StandardErrorPath": str(spec.log),
    }
