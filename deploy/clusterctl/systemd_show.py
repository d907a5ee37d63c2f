"""What `systemctl show` tells of a unit. Pure."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass

from clusterctl.services import ServiceState

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "UnitFileState",
    "NeedDaemonReload",
    "FragmentPath",
    "MainPID",
    "NRestarts",
    "ExecMainStartTimestampMonotonic",
    "ExecMainCode",
    "ExecMainStatus",
    "Result",
    "TimeoutStopUSec",
    "RestartUSec",
)
_EXITED, _KILLED, _DUMPED = 1, 2, 3
_UNITS_S = {"y": 31557600.0, "month": 2629800.0, "w": 604800.0, "d": 86400.0, "h": 3600.0, "min": 60.0}
_UNITS_S |= {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_SPAN = re.compile(r"(\d+)([a-z]+)")


@dataclass(frozen=True)
class Shown:
    """Of one unit."""

    state: ServiceState
    is_up: bool
    """It runs, is going to, or has ended well by itself: it was not told to stop."""
    is_current: bool
    """systemd goes by the file as it is, also at the next boot."""


def parse_show(text: str) -> Shown:
    """From the output of `systemctl show UNIT --property=…`, one KEY=VALUE a line."""
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    code, status = _number(found, "ExecMainCode"), _number(found, "ExecMainStatus")
    was_started = _number(found, "ExecMainStartTimestampMonotonic") > 0
    is_up = found.get("ActiveState") not in ("inactive", "failed", None)
    pid = _number(found, "MainPID") or None
    result = found.get("Result", "")
    state = ServiceState(
        loaded=found.get("LoadState") == "loaded",
        running=is_up and pid is not None,
        pid=pid,
        runs=_number(found, "NRestarts") + 1 if was_started else 0,
        last_exit=status if code == _EXITED else None,
        last_signal=signal.Signals(status).name if code in (_KILLED, _DUMPED) else "",
        reason="" if result == "success" else result,
        exit_timeout_s=_seconds(found.get("TimeoutStopUSec", "")),
        throttle_s=_seconds(found.get("RestartUSec", "")),
        path=found.get("FragmentPath", ""),
    )
    enabled = found.get("UnitFileState") == "enabled"
    return Shown(state, is_up, enabled and found.get("NeedDaemonReload") == "no")


def _number(found: dict[str, str], key: str) -> int:
    text = found.get(key, "")
    return int(text) if text.isdecimal() else 0


def _seconds(span: str) -> int | None:
    """`1min 30s` as 90, rounded up; None for what has no end."""
    parts = _SPAN.findall(span)
    if not parts or any(unit not in _UNITS_S for _count, unit in parts):
        return None
    return math.ceil(sum(int(count) * _UNITS_S[unit] for count, unit in parts))
