"""A worker that stays down until somebody asks or the machine boots, though launchd would start it for ever.

The mark is the one by which gateways know that nobody will start the worker. In it: in which life of
the machine it was set, and why.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

from protocol.addresses import Home

SUPERVISOR_VARIABLE = "STUDIOFLEET_SUPERVISOR"
"""In the environment of what launchd starts: `launchd`."""
VAIN_STARTS = 5
"""A worker that ended so often in a row without having been ready is parked."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LONGEST_ID = 64


def boot_id() -> str:
    """Another one after each boot; clocks have no part in it."""
    if _BOOT.exists():
        return _BOOT.read_text().strip()
    text = ctypes.create_string_buffer(_LONGEST_ID)
    size = ctypes.c_size_t(_LONGEST_ID)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, ctypes.c_size_t(0)):
        raise OSError(ctypes.get_errno(), "kern.bootsessionuuid cannot be read")
    return text.value.decode()


def park(home: Home, worker_id: str, why: str) -> None:
    """Raises `OSError`."""
    home.down_mark(worker_id).write_text(f"{boot_id()}\n{why}\n")


def why_parked(home: Home, worker_id: str) -> str | None:
    """None for one that is not, or was before this boot."""
    with contextlib.suppress(OSError):
        boot, _, why = home.down_mark(worker_id).read_text().partition("\n")
        if boot == boot_id():
            return why.strip()
    return None


def lift(home: Home, worker_id: str) -> None:
    """Let it start again, with all its attempts. Raises `OSError`."""
    for path in (home.down_mark(worker_id), home.attempts(worker_id)):
        path.unlink(missing_ok=True)
