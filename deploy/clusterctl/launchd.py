"""Services under launchd, over a `Runner`: judged by what `launchctl print` shows afterwards.

The exit codes of launchctl do not tell whether a job came or went: `bootstrap` may fail for seconds
after the job before has left, or say so although the job has begun; `bootout` may succeed while the
process is still ending. Not verified on a Mac.
"""

from __future__ import annotations

import contextlib
import plistlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from clusterctl.launchd_plist import launchd_plist
from clusterctl.launchd_print import parse_print
from clusterctl.runner import NOT_FOUND, Ended, Runner
from clusterctl.services import Backend, ServiceError, ServiceRefusedError, ServiceSpec, ServiceState, run

DAEMONS = PurePath("/Library/LaunchDaemons")
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


@dataclass(frozen=True)
class Domain:
    """Where launchd keeps jobs of one kind, and the folder from which it reads them."""

    name: str
    folder: PurePath

    @property
    def is_system(self) -> bool:
        return self.name == "system"

    def target(self, label: str) -> str:
        return f"{self.name}/{label}"

    def file(self, label: str) -> PurePath:
        return self.folder / f"{label}.plist"


def system_domain() -> Domain:
    """Of daemons, which run whoever is logged in; only root changes it."""
    return Domain("system", DAEMONS)


def session_domain(uid: int, user_home: PurePath) -> Domain:
    """Of agents, which run from a login at the screen to the log-out."""
    return Domain(f"gui/{uid}", user_home / "Library" / "LaunchAgents")


class Launchd(Backend):
    """The jobs of one domain. What changes something is run behind `privileged`: `("sudo",)`."""

    kind = "launchd"

    def __init__(
        self,
        runner: Runner,
        domain: Domain,
        privileged: Sequence[str] = (),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runner = runner
        self._privileged = tuple(privileged)
        self._domain = domain
        self._pause = pause

    def install(self, spec: ServiceSpec) -> bool:
        """See `Backend`. What was installed before comes back when launchd does not take the new job."""
        if self._domain.is_system and not spec.user:
            raise ServiceRefusedError(f"{spec.label}: a daemon needs a user to run as")
        text, before = launchd_plist(spec), self._read(spec.label)
        state = self.state(spec.label)
        if text == before and state.loaded and _is_as_loaded(spec, state, self._domain):
            return False
        self._stage(spec.label, text)
        try:
            self._leave(spec.label, state, spec.stop_s)
            self._put_in_place(spec.label)
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
        self._launchctl("kickstart", self._domain.target(label))
        self._await_spawn(label, runs=state.runs)

    def stop(self, label: str) -> bool:
        state = self.state(label)
        self._leave(label, state, self._wanted_stop_s(label))
        return state.loaded

    def reload(self, label: str) -> None:
        self._launchctl("kill", "SIGHUP", self._domain.target(label))

    def state(self, label: str) -> ServiceState:
        """Raises `ServiceRefusedError` where there is no launchd, or no session of this user."""
        ended = self._launchctl("print", self._domain.target(label))
        if ended.code == 0:
            return parse_print(ended.out)
        if ended.code == NOT_FOUND:
            raise ServiceRefusedError("there is no launchctl on this machine")
        if ended.code == _NO_SERVICE:
            return ServiceState()
        if ended.code in (_NO_SESSION, _NO_DOMAIN) and not self._domain.is_system:
            raise ServiceRefusedError(
                f"launchd has no session of this user: {ended.words}. Log in at the screen, or have root"
                " install daemons"
            )
        raise ServiceError(f"launchctl print {self._domain.target(label)}: {ended.words}")

    def remove(self, label: str) -> bool:
        """A `disable` of old would outlive the file, and be in the way of the next job of that name."""
        there = self._read(label) is not None
        was_loaded = self.stop(label)
        self._forget(label)
        self._launchctl("enable", self._domain.target(label))
        return there or was_loaded

    # --- steps -----------------------------------------------------------------------------

    def _leave(self, label: str, state: ServiceState, stop_s: int) -> None:
        """Have the job gone; the process gets its time, also under a plist that granted less."""
        if not state.loaded:
            return
        granted_s = state.exit_timeout_s or _UNSET_EXIT_TIMEOUT_S
        if state.running and granted_s < stop_s:
            self._launchctl("kill", "SIGTERM", self._domain.target(label))
            self._until(lambda: self.state(label).pid != state.pid, stop_s)
        ended = self._launchctl("bootout", self._domain.target(label))
        if self._until(lambda: not self.state(label).loaded, max(granted_s, stop_s) + _MARGIN_S):
            return
        raise ServiceError(
            f"launchd does not let go of {label}: {ended.words}; see: launchctl print"
            f" {self._domain.target(label)}"
        )

    def _enter(self, label: str) -> None:
        """Have the job loaded and its process begun."""
        target, path = self._domain.target(label), str(self._domain.file(label))
        self._launchctl("enable", target)  # an override of old outlives file and boot
        tries = max(1, round(_SETTLE_S / _LOOK_S))
        for left in reversed(range(tries)):
            ended = self._launchctl("bootstrap", self._domain.name, path)
            if self.state(label).loaded:
                break
            if ended.code == _DISABLED:
                self._launchctl("enable", target)
            elif ended.code not in (0, _IO_ERROR, _IN_PROGRESS, _ALREADY) or not left:
                raise ServiceError(f"launchd does not take {label}: {ended.words}; the file is {path}")
            self._pause(_LOOK_S)
        else:
            raise ServiceError(
                f"launchd does not take {label}: it stays disabled; see: launchctl print-disabled"
            )
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

        if not self._until(has_begun, _SPAWN_S):
            raise ServiceError(
                f"launchd has {label}, but does not start it; see: launchctl print"
                f" {self._domain.target(label)}"
            )

    def _undo(self, label: str, before: bytes | None) -> str:
        try:
            self._leave(label, self.state(label), self._wanted_stop_s(label))
            if before is None:
                self._forget(label)
                return "nothing is left of it"
            self._stage(label, before)
            self._put_in_place(label)
            self._enter(label)
        except ServiceError as error:
            return f"what was there before could not be brought back: {error}"
        return "what was there before runs again"

    # --- files -----------------------------------------------------------------------------

    def _read(self, label: str) -> bytes | None:
        ended = run(self._runner, "cat", str(self._domain.file(label)))
        return ended.out.encode() if ended.code == 0 else None

    def _stage(self, label: str, text: bytes) -> None:
        """Beside the file, checked by the system, with the mode and owner that launchd insists on."""
        owner = 'chown 0:0 "$1.new"' if self._domain.is_system else ":"
        script = (
            'set -e; mkdir -p "${1%/*}"; umask 022; cat > "$1.new"; chmod 0644 "$1.new";'
            f' {owner}; plutil -lint -s "$1.new" || {{ rm -f "$1.new"; exit 1; }}'
        )
        self._must("sh", "-c", script, "sh", str(self._domain.file(label)), stdin=text)

    def _put_in_place(self, label: str) -> None:
        path = str(self._domain.file(label))
        self._must("mv", f"{path}.new", path)

    def _forget(self, label: str) -> None:
        path = str(self._domain.file(label))
        self._must("rm", "-f", path, f"{path}.new")

    def _wanted_stop_s(self, label: str) -> int:
        """What the file grants; the job may still run under an older one."""
        with contextlib.suppress(plistlib.InvalidFileException, ValueError, KeyError):
            return int(plistlib.loads(self._read(label) or b"")["ExitTimeOut"])
        return _UNSET_EXIT_TIMEOUT_S

    # --- programs --------------------------------------------------------------------------

    def _launchctl(self, *words: str) -> Ended:
        """Looking needs no privilege."""
        rights = () if words[0] == "print" else self._privileged
        return run(self._runner, *rights, "launchctl", *words)

    def _must(self, *argv: str, stdin: bytes = b"") -> None:
        ended = run(self._runner, *self._privileged, *argv, stdin=stdin)
        if ended.code != 0:
            raise ServiceError(f"{self._domain.folder} cannot be changed: {ended.words}")

    def _until(self, done: Callable[[], bool], limit_s: float) -> bool:
        for _ in range(max(1, round(limit_s / _LOOK_S))):
            if done():
                return True
            self._pause(_LOOK_S)
        return done()


def _is_as_loaded(spec: ServiceSpec, state: ServiceState, domain: Domain) -> bool:
    """Whether the job was loaded from this spec, as far as launchd tells: it may run under an older one."""
    told = (
        (spec.stop_s, state.exit_timeout_s),
        (spec.throttle_s, state.throttle_s),
        ("interactive", state.spawn_type or None),
        (str(domain.file(spec.label)), state.path or None),
    )
    return all(seen in (None, wanted) for wanted, seen in told)
