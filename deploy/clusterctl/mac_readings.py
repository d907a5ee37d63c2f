"""What the tools of macOS print, read. Pure. Not verified on a Mac."""

from __future__ import annotations

import plistlib
import re
from datetime import datetime, timedelta
from xml.parsers.expat import ExpatError

from clusterctl.facts import Job
from clusterctl.launchd_print import parse_print

_PANIC = re.compile(r"(\d{4}-\d\d-\d\d-\d{6}).*\.panic")
_PANIC_AGE = timedelta(days=3)


def parse_pairs(text: str) -> dict[str, str]:
    """The lines `name: value` of sw_vers, sysctl and vm_stat."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def parse_power(text: str) -> dict[str, str]:
    """The settings in use, of `pmset -g`: a name, its value, and perhaps what prevents it."""
    return {
        words[0]: words[1]
        for line in text.splitlines()
        if line.startswith(" ") and len(words := line.split()) >= 2
    }


def parse_wired(text: str) -> int | None:
    """Bytes that are wired, of `vm_stat`."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = re.search(r"Pages wired down:\s+(\d+)", text)
    return int(size[1]) * int(pages[1]) if size and pages else None


def parse_switch(text: str) -> bool | None:
    """What fdesetup and socketfilterfw say of themselves: on or off; None when neither."""
    if re.search(r"\b(is On|enabled|State = [12])\b", text):
        return True
    return False if re.search(r"\b(is Off|disabled|State = 0)\b", text) else None


def parse_blocked(text: str) -> bool | None:
    """Of `socketfilterfw --getappblocked`."""
    if re.search(r"\b(permitted|allowed)\b", text):
        return False
    return True if re.search(r"\b(blocked|not part of the firewall)\b", text) else None


def recent_panics(names: str, now: datetime) -> tuple[str, ...]:
    """Among the names of reports, one a line, those of panics of the last days, by the date in them."""
    recent = []
    for name in names.split("\n"):
        if (found := _PANIC.search(name)) is None:
            continue
        when = datetime.strptime(found[1], "%Y-%m-%d-%H%M%S").replace(tzinfo=now.tzinfo)
        if now - when < _PANIC_AGE:
            recent.append(name)
    return tuple(sorted(recent))


def job_of(label: str, domain: str, printed: str, written: str | None) -> Job:
    """One that is loaded, and its property list as it is now; None where that is not there."""
    plist: dict[str, object] = {}
    if written is not None:
        try:
            plist = plistlib.loads(written.encode())
        except (ValueError, ExpatError):
            plist = {}
    return Job(
        label=label,
        domain=domain,
        loaded=parse_print(printed),
        exit_timeout_s=_number(plist.get("ExitTimeOut")),
        throttle_s=_number(plist.get("ThrottleInterval")),
        list_is_there=written is not None,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
