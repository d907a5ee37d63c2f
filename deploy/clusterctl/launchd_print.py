"""What `launchctl print` tells of a job. Pure.

Its text is no interface: only the lines below are read, and only those with exactly one tab before
them, as nested blocks have lines of the same names (`state = active` of a coalition) and the
environment may hold anything.
"""

from __future__ import annotations

import re
import signal

from clusterctl.services import ServiceState

_LINE = re.compile(r"\t([a-z][a-z ]*[a-z]) = (.*)")
_NUMBER = re.compile(r"-?\d+")


def parse_print(text: str) -> ServiceState:
    """The state of a job that is loaded, from the output of `launchctl print DOMAIN/LABEL`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            found.setdefault(match[1], match[2].strip())
    last_signal = _signal(found.get("last terminating signal", ""))
    last_exit = _number(found.get("last exit code", ""))
    pid = _number(found.get("pid", ""))
    return ServiceState(
        loaded=True,
        running=found.get("state") == "running" and pid is not None,
        pid=pid,
        runs=_number(found.get("runs", "")),
        last_exit=last_exit,
        last_signal=last_signal,
        reason=found.get("last exit reason", ""),
        exit_timeout_s=_number(found.get("exit timeout", "")),
        throttle_s=_number(found.get("minimum runtime", "")),
        spawn_type=found.get("spawn type", "").partition(" ")[0],
        path=found.get("path", ""),
    )


def _number(text: str) -> int | None:
    """The number with which it begins: `78: EX_CONFIG`; None for `(never exited)`."""
    match = _NUMBER.match(text)
    return int(match[0]) if match else None


def _signal(text: str) -> str:
    """`Killed: 9` as `SIGKILL`; what is no signal as it stands."""
    match = re.search(r"(\d+)$", text)
    try:
        return signal.Signals(int(match[1])).name if match else text
    except ValueError:
        return text
