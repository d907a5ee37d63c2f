"""Having the cluster started at boot, or at login: the file where systemd or launchd looks for it.

systemctl and launchctl are believed where they name a state, not where they say that all went well:
what is to run has to answer.
"""

from __future__ import annotations

import getpass
import os
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from clusterctl.bootunits import BootPlan, boot_unit, launchd_job
from clusterctl.launchd import Launchd as Jobs
from clusterctl.launchd_verbs import SessionVerbs, session_domain
from clusterctl.operations import OperationError, RefusedError, Say
from clusterctl.runner import LocalRunner

_LIMIT_S = 60.0


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. Raises `RefusedError` when it is not there."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except FileNotFoundError as error:
        raise RefusedError(f"there is no {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise OperationError(f"{' '.join(command)} did not end within {_LIMIT_S:g} s") from error


def _must(*command: str) -> None:
    result = _run(*command)
    if result.returncode != 0:
        raise OperationError(f"{' '.join(command)} failed: {_words(result)}")


def _words(result: subprocess.CompletedProcess[str]) -> str:
    return (result.stderr or result.stdout).strip() or f"exit code {result.returncode}"


class BootManager(ABC):
    """systemd, or launchd, of this user."""

    kind = ""
    remark = ""
    """What whoever reads or installs the file should know."""

    @abstractmethod
    def file(self, name: str) -> Path: ...

    @abstractmethod
    def text(self, plan: BootPlan) -> bytes: ...

    @abstractmethod
    def check(self) -> None:
        """Raises `RefusedError` when it does not run here."""

    @abstractmethod
    def enable(self, name: str, say: Say) -> None:
        """Have the file heeded from the next boot or login on."""

    @abstractmethod
    def start(self, name: str) -> None:
        """Have it run now."""

    @abstractmethod
    def disable(self, name: str) -> None:
        """Forget the file, which is removed afterwards; what runs goes on."""

    @abstractmethod
    def state(self, name: str) -> str:
        """In its own words, whether it is heeded and runs."""

    @abstractmethod
    def how_root_installs(self, name: str) -> str:
        """The commands for a daemon, which is shown only."""

    def write(self, plan: BootPlan) -> bool:
        """Put the file there, whole; False when it is the same already. Raises `OSError`."""
        path, text = self.file(plan.name), self.text(plan)
        if self.is_installed(plan):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.new")
        aside.write_bytes(text)
        aside.chmod(0o644)  # launchd takes no file that others may write
        aside.rename(path)
        return True

    def is_installed(self, plan: BootPlan) -> bool:
        """Whether the file is there, as it would be written now."""
        path = self.file(plan.name)
        return path.is_file() and path.read_bytes() == self.text(plan)


class Systemd(BootManager):
    """The systemd manager of this user, which lingers when nobody is logged in."""

    kind = "systemd"

    def file(self, name: str) -> Path:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
        return folder / "systemd" / "user" / f"{name}.service"

    def text(self, plan: BootPlan) -> bytes:
        return boot_unit(plan).encode()

    def check(self) -> None:
        result = _run("systemctl", "--user", "show-environment")
        if result.returncode != 0:
            raise RefusedError(
                f"systemd does not run for this user: {_words(result)}. Log in as this user itself (ssh, not"
                " su or sudo). Where there is no systemd, such as in a container, have this started at boot:"
                " clusterctl up --foreground"
            )

    def enable(self, name: str, say: Say) -> None:
        _must("systemctl", "--user", "daemon-reload")
        _must("systemctl", "--user", "enable", f"{name}.service")
        user = getpass.getuser()
        if self._lingers(user):
            return
        result = _run("loginctl", "enable-linger", user)
        if result.returncode != 0 or not self._lingers(user):
            say(
                f"as long as {user} is not logged in, systemd starts nothing for this user, and it ends all"
                f" at log-out; to change that: sudo loginctl enable-linger {user} ({_words(result)})"
            )

    def _lingers(self, user: str) -> bool:
        return "Linger=yes" in _run("loginctl", "show-user", user, "--property=Linger").stdout

    def start(self, name: str) -> None:
        _must("systemctl", "--user", "start", f"{name}.service")

    def disable(self, name: str) -> None:
        _must("systemctl", "--user", "disable", f"{name}.service")

    def state(self, name: str) -> str:
        words = [_run("systemctl", "--user", ask, f"{name}.service") for ask in ("is-enabled", "is-active")]
        if not words[0].stdout:
            return _words(words[0])
        linger = "lingers" if self._lingers(getpass.getuser()) else "does not linger: ends at log-out"
        return f"{words[0].stdout.strip()}, {words[1].stdout.strip()}, {linger}"

    def how_root_installs(self, name: str) -> str:
        file = f"/etc/systemd/system/{name}.service"
        return f"clusterctl boot show --daemon | sudo tee {file}; sudo systemctl enable --now {name}"


class Launchd(BootManager):
    """The launchd domain of this user's login."""

    kind = "launchd"
    remark = (
        "not verified on a Mac. An agent runs from this user's login to the log-out; for a Mac that nobody"
        " logs in to, let root install a daemon: clusterctl boot show --daemon"
    )

    def __init__(self) -> None:
        self._domain = session_domain(os.getuid(), Path("~").expanduser())
        self._jobs = Jobs(SessionVerbs(LocalRunner(), self._domain))

    def file(self, name: str) -> Path:
        return Path(self._domain.file(name))

    def text(self, plan: BootPlan) -> bytes:
        return launchd_job(plan)

    def check(self) -> None:
        result = _run("launchctl", "print", self._domain.name)
        if result.returncode != 0:
            raise RefusedError(
                f"launchd has no session of this user: {_words(result)}. Log in at the screen, or let root"
                " install a daemon: clusterctl boot show --daemon"
            )

    def enable(self, name: str, say: Say) -> None:
        _must("launchctl", "enable", self._domain.target(name))  # an override of old outlives the file

    def start(self, name: str) -> None:
        self._jobs.restart(name)  # what was loaded has the older file

    def disable(self, name: str) -> None:
        """launchd looks into the folder at login; without the file it finds nothing."""

    def state(self, name: str) -> str:
        state = self._jobs.state(name)
        if not state.loaded:
            return "not loaded before the next login"
        return "loaded, running" if state.running else "loaded, not running"

    def how_root_installs(self, name: str) -> str:
        file = f"/Library/LaunchDaemons/{name}.plist"
        return (
            f"clusterctl boot show --daemon | sudo tee {file}; sudo launchctl bootstrap system {file}"
            "   (not verified on a Mac)"
        )


def manager_of(platform: str) -> BootManager:
    """The one of `sys.platform`."""
    return Launchd() if platform == "darwin" else Systemd()
