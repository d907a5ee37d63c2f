"""Processes that become ours when their parents end: as pid 1 of a container, or by request on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36


def take_orphans() -> None:
    """Become the parent of descendants that lose theirs, as pid 1 is anyway: others may never reap them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Collection[int]) -> None:
    """Let go of ended children that this program did not start; `own` are those that it did."""
    if not hasattr(os, "waitid"):
        return  # an older Python on macOS, where no process gets orphans but launchd
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                return  # its own turn comes first, and this one's again with the next signal
            os.waitpid(ended.si_pid, os.WNOHANG)
