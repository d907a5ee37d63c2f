"""How often this worker was started in vain: launchd never gives up, so the worker itself has to.

A count in a file, of one boot: it is raised before anything can go wrong, so that a killed process
counts, too, and removed once the worker has been ready or ends because it was asked to.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from protocol.addresses import Home
from protocol.parking import SUPERVISOR_VARIABLE, VAIN_STARTS, boot_id, lift, park, why_parked
from protocol.states import ExitCode

logger = logging.getLogger(__name__)


class Attempts:
    """Of one worker. Where a supervisor counts, only the file it made is removed."""

    def __init__(self, home: Home, worker_id: str, environ: Mapping[str, str]) -> None:
        self._home = home
        self._id = worker_id
        self._counts = environ.get(SUPERVISOR_VARIABLE) == "launchd"
        self._vain = 0
        self._was_ready = False
        self.why = ""
        """What is known of why it is going to end."""

    def begin(self) -> bool:
        """Whether to start at all; if not, the process ends well, and stays down."""
        if not self._counts:
            return True
        with contextlib.suppress(OSError):  # a full disk is no reason not to serve
            parked = why_parked(self._home, self._id)
            self._vain = self._earlier()
            if parked is None and self._vain < VAIN_STARTS:
                self._home.down_mark(self._id).unlink(missing_ok=True)  # of an earlier boot
                self._vain += 1
                self._home.attempts(self._id).write_text(f"{boot_id()} {self._vain}\n")
                return True
            if parked is None:
                parked = f"it ended {self._vain} times in a row without having been ready; see its log"
                park(self._home, self._id, parked)
            self._vain = 0
            self._say(parked)
            return False
        return True

    def _earlier(self) -> int:
        with contextlib.suppress(FileNotFoundError, ValueError):
            boot, count = self._home.attempts(self._id).read_text().split()
            return int(count) if boot == boot_id() else 0
        return 0

    def arrived(self, ready: bool) -> None:
        """It is ready, or would be if asked. Idempotent."""
        if self._counts:
            self.succeeded()
        elif ready and not self._was_ready:
            self._was_ready = True
            with contextlib.suppress(OSError):
                self._home.attempts(self._id).unlink(missing_ok=True)

    def succeeded(self) -> None:
        """It has been ready. Idempotent."""
        if self._vain:
            self._vain = 0
            with contextlib.suppress(OSError):
                lift(self._home, self._id)

    def end(self, code: ExitCode) -> ExitCode:
        """The code to end with: launchd starts again whatever ends with another than 0."""
        if not self._counts:
            return code
        if code in (ExitCode.OK, ExitCode.RESTART):
            self.succeeded()
        elif code is ExitCode.MISCONFIGURED or self._vain >= VAIN_STARTS:
            with contextlib.suppress(OSError):
                park(self._home, self._id, self.why or f"it ended with {code.name}; see its log")
                self._say(self.why)
                return ExitCode.OK
        return code

    def _say(self, why: str) -> None:
        logger.error(
            "worker %s stays down: %s; when that is repaired: clusterctl restart %s", self._id, why, self._id
        )
