"""The machine's memory: how much of it models may take, and giving back what is free."""

from __future__ import annotations

import ctypes
import gc
import sys

import psutil

from protocol.config import ResidencyConfig

_SHARE = 0.75
"""Of the machine's memory, where the configuration says nothing."""


def budget_mb(config: ResidencyConfig) -> int:
    """For the models of this machine together (MiB)."""
    if config.memory_budget_mb is not None:
        return config.memory_budget_mb
    return int(_SHARE * psutil.virtual_memory().total) >> 20


def give_back() -> None:
    """Return freed memory to the system. Takes a moment: not for the event loop."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc keeps what was freed, musl has none
        if trim is not None:
            trim(0)
