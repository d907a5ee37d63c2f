"""Services under systemd, over a `Runner`: judged by what `systemctl show` tells afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from clusterctl.runner import NOT_FOUND, Ended, Runner
from clusterctl.services import (
    Backend,
    ServiceError,
    ServiceRefusedError,
    ServiceSpec,
    ServiceState,
    run,
    until,
)
from clusterctl.systemd_show import PROPERTIES, Shown, parse_show
from clusterctl.systemd_unit import systemd_unit

_MARGIN_S = 30.0
_LOOK_S = 0.2
_UNSET_EXIT_TIMEOUT_S = 90


@dataclass(frozen=True)
class Manager:
    """A systemd: the system's, or one user's own, and the folder from which it reads our units."""

    folder: PurePath
    is_system: bool

    @property
    def command(self) -> tuple[str, ...]:
        return ("systemctl",) if self.is_system else ("systemctl", "--user")

    def file(self, label: str) -> PurePath:
        return self.folder / f"{label}.service"


def system_manager() -> Manager:
    """Of services that run as any user, from boot on; only root changes it."""
    return Manager(PurePath("/etc/systemd/system"), is_system=True)


def user_manager(config_home: PurePath) -> Manager:
    """Of one user, by XDG_CONFIG_HOME; from boot on, if that user lingers."""
    return Manager(config_home / "systemd" / "user", is_system=False)


class Systemd(Backend):
    """The units of one manager. What changes something is run behind `privileged`: `("sudo",)`.

    Unlike launchd, systemd waits for `throttle_s` before every restart, also of what ran for long; and a
    process that somebody ended with SIGTERM, SIGINT or SIGHUP is done, like one that ended with 0.
    """

    kind = "systemd"

    def __init__(
        self,
        runner: Runner,
        manager: Manager,
        privileged: Sequence[str] = (),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runner = runner
        self._manager = manager
        self._privileged = tuple(privileged)
        self._pause = pause

    def install(self, spec: ServiceSpec) -> bool:
        """See `Backend`. What was installed before comes back when systemd does not take the new unit."""
        if self._manager.is_system != bool(spec.user):
            named = "needs a user to run as" if self._manager.is_system else "runs as its user alone"
            raise ServiceRefusedError(f"{spec.label}: a service of this systemd {named}")
        text, before = systemd_unit(spec), self._read(spec.label)
        shown = self._show(spec.label)
        if text == before and shown.is_current and shown.is_up:
            return False
        self._stage(spec.label, text)
        try:
            self._replace(spec.label)
        except ServiceError as error:
            raise ServiceError(f"{error}; {self._undo(spec.label, before)}") from error
        return True

    def start(self, label: str) -> None:
        shown = self._show(label)
        if shown.state.running:
            return
        verb = "restart" if shown.is_up else "start"  # one that ended well is up, in systemd's eyes
        ended = self._systemctl(verb, _unit(label))  # returns when its program has begun
        if ended.code != 0:
            status = f"{' '.join(self._manager.command)} status {label}"
            raise ServiceError(
                f"systemd cannot start {label}: its program, its folder, its user or the folder of its log is"
                f" missing or closed to it ({_first(ended)}); see: {status}"
            )

    def stop(self, label: str) -> bool:
        shown = self._show(label)
        if not shown.is_up:
            return False
        ended = self._systemctl("stop", "--no-block", _unit(label))
        limit_s = (shown.state.exit_timeout_s or _UNSET_EXIT_TIMEOUT_S) + _MARGIN_S
        if until(lambda: not self._show(label).is_up, limit_s, _LOOK_S, self._pause):
            return True
        raise ServiceError(f"systemd does not end {label}: {_first(ended)}")

    def reload(self, label: str) -> None:
        self._systemctl("kill", "--kill-who=main", "--signal=SIGHUP", _unit(label))

    def state(self, label: str) -> ServiceState:
        """Raises `ServiceRefusedError` where there is no systemd, or none for this user."""
        return self._show(label).state

    def remove(self, label: str) -> bool:
        there = self._read(label) is not None
        was_up = self.stop(label)
        self._forget(label)
        return there or was_up

    # --- steps -----------------------------------------------------------------------------

    def _replace(self, label: str) -> None:
        """The process ends before systemd hears of the new unit: what is cut off here is seen to be down."""
        self.stop(label)
        path = str(self._manager.file(label))
        self._must("mv", f"{path}.new", path)
        self._tell("daemon-reload")
        self._tell("enable", _unit(label))
        self.start(label)

    def _undo(self, label: str, before: str | None) -> str:
        try:
            if before is None:
                self.remove(label)
                return "nothing is left of it"
            self._stage(label, before)
            self._replace(label)
        except ServiceError as error:
            return f"what was there before could not be brought back: {error}"
        return "what was there before runs again"

    def _forget(self, label: str) -> None:
        path = str(self._manager.file(label))
        if self._read(label) is not None:
            self._tell("disable", _unit(label))
        self._must("rm", "-f", path, f"{path}.new")
        self._tell("daemon-reload")
        self._systemctl("reset-failed", _unit(label))  # fails for what has not failed

    def _read(self, label: str) -> str | None:
        ended = run(self._runner, "cat", str(self._manager.file(label)))
        return ended.out if ended.code == 0 else None

    def _stage(self, label: str, text: str) -> None:
        """Beside the file, under a name that systemd does not read."""
        script = 'set -e; mkdir -p "${1%/*}"; umask 022; cat > "$1.new"; chmod 0644 "$1.new"'
        self._must("sh", "-c", script, "sh", str(self._manager.file(label)), stdin=text.encode())

    def _show(self, label: str) -> Shown:
        ended = self._systemctl("show", _unit(label), f"--property={','.join(PROPERTIES)}")
        if ended.code == 0:
            return parse_show(ended.out)
        if ended.code == NOT_FOUND:
            raise ServiceRefusedError("there is no systemctl on this machine")
        whose = "on this machine" if self._manager.is_system else "for this user"
        raise ServiceRefusedError(
            f"systemd does not run {whose}: {_first(ended)}"
            + ("" if self._manager.is_system else ". Log in as this user itself (ssh, not su or sudo)")
        )

    # --- programs --------------------------------------------------------------------------

    def _systemctl(self, *words: str) -> Ended:
        """Looking needs no privilege."""
        rights = () if words[0] == "show" else self._privileged
        return run(self._runner, *rights, *self._manager.command, *words)

    def _tell(self, *words: str) -> None:
        ended = self._systemctl(*words)
        if ended.code != 0:
            raise ServiceError(f"systemctl {' '.join(words)}: {_first(ended)}")

    def _must(self, *argv: str, stdin: bytes = b"") -> None:
        ended = run(self._runner, *self._privileged, *argv, stdin=stdin)
        if ended.code != 0:
            raise ServiceError(f"{self._manager.folder} cannot be changed: {ended.words}")


def _unit(label: str) -> str:
    return f"{label}.service"


def _first(ended: Ended) -> str:
    """systemctl names the fault first, and then where to read more."""
    lines = ended.err.strip().splitlines()
    return lines[0].strip() if lines else ended.words
