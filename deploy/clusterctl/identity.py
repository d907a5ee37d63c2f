"""What tells a running process from any other that had, or will have, its pid."""

from __future__ import annotations

import functools
from pathlib import Path

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED = "ZX"


def identity_of(pid: int) -> str | None:
    """The same for as long as the process runs; None when none of that pid does.

    It does not depend on the wall clock, which may be set while the process runs.
    """
    return _from_proc(pid) if _BOOT.exists() else _from_system(pid)


def _from_proc(pid: int) -> str | None:
    """On Linux: in which life of the machine, and how many ticks after its begin (proc(5), stat)."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = line.rpartition(")")[2].split()  # the name before may hold anything
    return None if state in _ENDED else f"{_boot()}/{fields[18]}"


@functools.cache
def _boot() -> str:
    return _BOOT.read_text().strip()


def _from_system(pid: int) -> str | None:
    """On macOS: when it was started, as the kernel noted it at that moment."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.6f}"
    except psutil.NoSuchProcess:
        return None
