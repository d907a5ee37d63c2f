"""What memory the process takes and may take, by one interface: the machine's, or a recorded one."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import psutil

from worker.memory import give_back


@dataclass(frozen=True)
class MemoryReading:
    """Bytes at one moment."""

    active: int
    """In MLX's arrays."""
    cache: int
    """Kept by MLX for arrays to come."""
    peak: int
    """The most that `active` ever was."""
    footprint: int
    """Of the process, as its system counts it."""
    limit: int
    """What the process may take."""

    @property
    def used(self) -> int:
        """The larger of both accounts: each has been seen to miss what the other has."""
        return max(self.active + self.cache, self.footprint)


class Memory(Protocol):
    """Where readings come from. Engine thread only."""

    def read(self) -> MemoryReading: ...

    def give_back(self) -> None:
        """Free what is only kept for arrays to come."""


class MlxMemory:
    """MLX's own counters, and the system's account of this process."""

    def __init__(self, limit: int | None = None) -> None:
        """`limit` None: what the device recommends for its arrays, or else the machine's memory."""
        import mlx.core as mx  # noqa: PLC0415 (OpenBLAS came first)

        self._mx = mx
        self._footprint = footprint_reader(sys.platform)
        device = mx.device_info()
        self._limit = limit or int(
            device.get("max_recommended_working_set_size") or psutil.virtual_memory().total
        )

    def read(self) -> MemoryReading:
        mx = self._mx
        return MemoryReading(
            active=mx.get_active_memory(),
            cache=mx.get_cache_memory(),
            peak=mx.get_peak_memory(),
            footprint=self._footprint(),
            limit=self._limit,
        )

    def give_back(self) -> None:
        self._mx.clear_cache()
        give_back()


class RusageInfo(ctypes.Structure):
    """`struct rusage_info_v0` of macOS's <sys/resource.h>."""

    _fields_ = (
        ("ri_uuid", ctypes.c_uint8 * 16),
        ("ri_user_time", ctypes.c_uint64),
        ("ri_system_time", ctypes.c_uint64),
        ("ri_pkg_idle_wkups", ctypes.c_uint64),
        ("ri_interrupt_wkups", ctypes.c_uint64),
        ("ri_pageins", ctypes.c_uint64),
        ("ri_wired_size", ctypes.c_uint64),
        ("ri_resident_size", ctypes.c_uint64),
        ("ri_phys_footprint", ctypes.c_uint64),
        ("ri_proc_start_abstime", ctypes.c_uint64),
        ("ri_proc_exit_abstime", ctypes.c_uint64),
    )


def footprint_reader(platform: str) -> Callable[[], int]:
    """Reads the size of this process: on a Mac its physical footprint, by which the system ends
    processes; elsewhere what of it is resident."""
    if platform != "darwin":
        process = psutil.Process()
        return lambda: int(process.memory_info().rss)
    ask = ctypes.CDLL(None).proc_pid_rusage  # <libproc.h>

    def read() -> int:
        info = RusageInfo()
        if ask(os.getpid(), 0, ctypes.byref(info)) != 0:
            raise OSError("proc_pid_rusage does not tell the footprint of this process")
        return int(info.ri_phys_footprint)

    return read
