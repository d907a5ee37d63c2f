"""The few things that can be told to launchd, by way of the program that acts for root, or as this user.

Each ends with the exit code of `launchctl`, which says little: see `launchd`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from clusterctl.root_helper import RootHelper
from clusterctl.runner import Ended, Runner
from clusterctl.services import ServiceError, run

SUDO = ("sudo", "-n")
_NEED_NO_ROOT = ("check", "print", "show", "list")


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


def session_domain(uid: int, user_home: PurePath) -> Domain:
    """Of agents, which run from a login at the screen to the log-out."""
    return Domain(f"gui/{uid}", user_home / "Library" / "LaunchAgents")


class Verbs(ABC):
    """The verbs are those of `root_helper.sh`."""

    domain: Domain

    @abstractmethod
    def do(self, verb: str, label: str, stdin: bytes = b"") -> Ended:
        """Raises `ServiceError` when it does not end."""


class HelperVerbs(Verbs):
    """Of daemons, by the program that acts for root; `rights` is what is typed before it: `SUDO`."""

    def __init__(self, runner: Runner, helper: RootHelper, rights: Sequence[str] = SUDO) -> None:
        self.domain = Domain("system", helper.daemons)
        self._runner = runner
        self._program = str(helper.path)
        self._rights = tuple(rights)

    def do(self, verb: str, label: str, stdin: bytes = b"") -> Ended:
        rights = () if verb in _NEED_NO_ROOT else self._rights
        return run(self._runner, *rights, self._program, verb, label, stdin=stdin)


class SessionVerbs(Verbs):
    """Of the agents of a session, as their user; their files are not written by these."""

    def __init__(self, runner: Runner, domain: Domain) -> None:
        self.domain = domain
        self._runner = runner

    def do(self, verb: str, label: str, stdin: bytes = b"") -> Ended:
        target, file = self.domain.target(label), str(self.domain.file(label))
        commands = {
            "print": ["launchctl", "print", target],
            "show": ["cat", file],
            "bootstrap": ["launchctl", "bootstrap", self.domain.name, file],
            "bootout": ["launchctl", "bootout", target],
            "kickstart": ["launchctl", "kickstart", target],
            "terminate": ["launchctl", "kill", "SIGTERM", target],
            "hangup": ["launchctl", "kill", "SIGHUP", target],
        }
        if verb not in commands:
            raise ServiceError(f"the file of the agent {label} is written by: clusterctl boot install")
        if verb == "bootstrap":
            run(self._runner, "launchctl", "enable", target)  # an override of old outlives file and boot
        return run(self._runner, *commands[verb])
