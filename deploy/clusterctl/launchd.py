"""Services under launchd, by its verbs: judged by what `launchctl print` shows afterwards.

The exit codes of launchctl do not tell whether a job came or went: `bootstrap` may fail for seconds
after the job before has left, or say so although the job has begun; `bootout` may succeed while the
process is still ending. Not verified on a Mac.
"""

from __future__ import annotations

import contextlib
import plistlib
import time
from collections.abc import Callable

from clusterctl.launchd_plist import launchd_plist
from clusterctl.launchd_print import parse_print
from clusterctl.launchd_verbs import Domain, Verbs
from clusterctl.root_helper import REFUSALS
from clusterctl.runner import NOT_FOUND, Ended
from clusterctl.services import (
    Backend,
    ServiceError,
    ServiceRefusedError,
    ServiceSpec,
    ServiceState,
    until,
)

SPAWN_FAILED = 78
"""launchd's `last exit code` of a job whose program, folder, user or log it could not use."""
_SETTLE_S = 20.0
"""So long launchd may refuse a job whose predecessor has just left; 5 s were measured."""
_SPAWN_S = 10.0
_MARGIN_S = 30.0
_LOOK_S = 0.5
_UNSET_EXIT_TIMEOUT_S = 5
_NO_DOMAIN, _NO_SERVICE = 112, 113
_IN_PROGRESS, _ALREADY, _IO_ERROR, _NO_PROCESS = 36, 37, 5, 3
_DISABLED, _NO_SESSION = 119, 125


class Launchd(Backend):
    """The jobs of one domain."""

    kind = "launchd"

    def __init__(self, verbs: Verbs, pause: Callable[[float], None] = time.sleep) -> None:
        self._verbs = verbs
        self._domain = verbs.domain
        self._pause = pause

    def install(self, spec: ServiceSpec) -> bool:
        """See `Backend`. What was installed before comes back when launchd does not take the new job."""
        if self._domain.is_system and not spec.user:
            raise ServiceRefusedError(f"{spec.label}: a daemon needs a user to run as")
        text, before = launchd_plist(spec), self._read(spec.label)
        state = self.state(spec.label)
        if text == before and state.loaded and _is_as_loaded(spec, state, self._domain):
            return False
        self._must("check", spec.label, text)
        try:
            self._leave(spec.label, state, spec.stop_s)
            self._must("install", spec.label, text)
            self._enter(spec.label)
        except ServiceError as error:
            raise ServiceError(f"{error}; {self._undo(spec.label, before)}") from error
        return True

    def start(self, label: str) -> None:
        state = self.state(label)
        if state.running:
            return
        if not state.loaded:
            self._enter(label)
            return
        self._verbs.do("kickstart", label)
        self._await_spawn(label, runs=state.runs)

    def stop(self, label: str) -> bool:
        state = self.state(label)
        self._leave(label, state, self._wanted_stop_s(label))
        return state.loaded

    def reload(self, label: str) -> None:
        self._verbs.do("hangup", label)

    def state(self, label: str) -> ServiceState:
        """Raises `ServiceRefusedError` where there is no launchd, no session, or no way to root."""
        ended = self._verbs.do("print", label)
        if ended.code == 0:
            return parse_print(ended.out)
        if ended.code == NOT_FOUND:
            raise ServiceRefusedError(_no_way(ended))
        if ended.code == _NO_SERVICE:
            return ServiceState()
        if ended.code in (_NO_SESSION, _NO_DOMAIN) and not self._domain.is_system:
            raise ServiceRefusedError(
                f"launchd has no session of this user: {ended.words}. Log in at the screen, or have root"
                " install daemons"
            )
        raise ServiceError(f"launchctl print {self._domain.target(label)}: {ended.words}")

    def remove(self, label: str) -> bool:
        there = self._read(label) is not None
        was_loaded = self.stop(label)
        self._must("remove", label)
        return there or was_loaded

    # --- steps -----------------------------------------------------------------------------

    def _leave(self, label: str, state: ServiceState, stop_s: int) -> None:
        """Have the job gone; the process gets its time, also under a plist that granted less."""
        if not state.loaded:
            return
        granted_s = state.exit_timeout_s or _UNSET_EXIT_TIMEOUT_S
        if state.running and granted_s < stop_s:
            self._verbs.do("terminate", label)
            until(lambda: self.state(label).pid != state.pid, stop_s, _LOOK_S, self._pause)
        ended = self._verbs.do("bootout", label)
        limit_s = max(granted_s, stop_s) + _MARGIN_S
        if until(lambda: not self.state(label).loaded, limit_s, _LOOK_S, self._pause):
            return
        raise ServiceError(
            f"launchd does not let go of {label}: {ended.words}; see: launchctl print"
            f" {self._domain.target(label)}"
        )

    def _enter(self, label: str) -> None:
        """Have the job loaded and its process begun."""
        tries = max(1, round(_SETTLE_S / _LOOK_S))
        for left in reversed(range(tries)):
            ended = self._verbs.do("bootstrap", label)
            if self.state(label).loaded:
                break
            retried = ended.code in (0, _IO_ERROR, _IN_PROGRESS, _ALREADY, _DISABLED)
            if not retried or not left:
                raise ServiceError(
                    f"launchd does not take {label}: {ended.words}; the file is {self._domain.file(label)}"
                )
            self._pause(_LOOK_S)
        self._await_spawn(label, runs=0)

    def _await_spawn(self, label: str, runs: int | None) -> None:
        """Return when the process has begun, even if it has ended since."""

        def has_begun() -> bool:
            state = self.state(label)
            if state.last_exit == SPAWN_FAILED and not state.running:
                raise ServiceError(
                    f"launchd cannot start {label} ({SPAWN_FAILED}): its program, its folder, its user or the"
                    f" folder of its log is missing or closed to it; the file is {self._domain.file(label)}"
                )
            return state.running or (state.runs or 0) > (runs or 0)

        if not until(has_begun, _SPAWN_S, _LOOK_S, self._pause):
            raise ServiceError(
                f"launchd has {label}, but does not start it; see: launchctl print"
                f" {self._domain.target(label)}"
            )

    def _undo(self, label: str, before: bytes | None) -> str:
        try:
            self._leave(label, self.state(label), self._wanted_stop_s(label))
            if before is None:
                self._must("remove", label)
                return "nothing is left of it"
            self._must("install", label, before)
            self._enter(label)
        except ServiceError as error:
            return f"what was there before could not be brought back: {error}"
        return "what was there before runs again"

    def _read(self, label: str) -> bytes | None:
        """Its property list; None when there is none."""
        ended = self._verbs.do("show", label)
        if ended.code in (*REFUSALS, NOT_FOUND):
            raise ServiceRefusedError(_no_way(ended))
        return ended.out.encode() if ended.code == 0 else None

    def _wanted_stop_s(self, label: str) -> int:
        """What the file grants; the job may still run under an older one."""
        with contextlib.suppress(plistlib.InvalidFileException, ValueError, KeyError):
            return int(plistlib.loads(self._read(label) or b"")["ExitTimeOut"])
        return _UNSET_EXIT_TIMEOUT_S

    def _must(self, verb: str, label: str, stdin: bytes = b"") -> None:
        ended = self._verbs.do(verb, label, stdin)
        if ended.code in REFUSALS:
            raise ServiceRefusedError(f"{label}: {ended.words}")
        if ended.code != 0:
            raise ServiceError(f"{self._domain.folder} cannot be changed: {ended.words}")


def _no_way(ended: Ended) -> str:
    return (
        f"launchd cannot be told anything: {ended.words}. clusterctl up installs what is needed, and on a"
        " node clusterctl node add"
    )


def _is_as_loaded(spec: ServiceSpec, state: ServiceState, domain: Domain) -> bool:
    """Whether the job was loaded from this spec, as far as launchd tells: it may run under an older one."""
    told = (
        (spec.stop_s, state.exit_timeout_s),
        (spec.throttle_s, state.throttle_s),
        ("interactive", state.spawn_type or None),
        (str(domain.file(spec.label)), state.path or None),
    )
    return all(seen in (None, wanted) for wanted, seen in told)
