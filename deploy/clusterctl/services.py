"""A service of a machine, whoever starts it: what it is to be, how it is, and what can be done with it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from clusterctl.runner import Ended, Runner, RunnerTimeoutError

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_SECRET_NAME = re.compile(r"(?i)(^|_)(token|secret|password|api_?key|private_?key)$")
_SECRET = re.compile(
    r"(?i)^--?(token|secret|password|api-?key)\b|(^|=)(sk-|hf_|ghp_)[a-z0-9_-]{12}|PRIVATE KEY-"
)


class ServiceError(RuntimeError):
    """It did not work: why, and what to do."""


class ServiceRefusedError(ServiceError):
    """Nothing was done, because a check failed."""


@dataclass(frozen=True)
class ServiceSpec:
    """What is to run. Its paths are absolute, and of the machine it runs on."""

    label: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    folder: PurePath
    log: PurePath
    """Of its stdout and stderr; the folder has to be there."""
    stop_s: int
    """From SIGTERM to SIGKILL."""
    throttle_s: int = 10
    """Not started more often than once in so many seconds."""
    user: str = ""
    """Empty: as whoever owns the session; else by the system, as this user."""
    group: str = ""
    umask: int = 0o027

    def __post_init__(self) -> None:
        """Raises `ServiceRefusedError` for what no backend may be given."""
        if not LABEL.fullmatch(self.label):
            raise ServiceRefusedError(f"{self.label!r} is no label: letters, digits, dots and dashes")
        for path in (PurePath(*self.argv[:1]), self.folder, self.log):
            if not path.is_absolute():
                raise ServiceRefusedError(f"{path} of {self.label} is not absolute")
        if self.stop_s < 1 or self.throttle_s < 1:
            raise ServiceRefusedError(f"{self.label}: the times of a service are whole seconds, at least one")
        names = [name for name in self.environ if _SECRET_NAME.search(name)]
        words = [word for word in (*self.argv, *self.environ.values()) if _SECRET.search(word)]
        if names or words:
            what = names[0] if names else f"{words[0][:8]}…"
            raise ServiceRefusedError(
                f"{self.label}: {what} looks like a secret, which anybody could read there"
            )


@dataclass(frozen=True)
class ServiceState:
    """How it is; None where nobody tells."""

    loaded: bool = False
    running: bool = False
    pid: int | None = None
    runs: int | None = None
    last_exit: int | None = None
    last_signal: str = ""
    reason: str = ""
    """Of the last end, in the manager's words."""
    exit_timeout_s: int | None = None
    throttle_s: int | None = None
    spawn_type: str = ""
    path: str = ""
    """Of the file that it was loaded from."""


class Backend(ABC):
    """Whoever starts services, and starts them again when they fail. Its verbs may be repeated.

    Exit code 0 means that a service is done, anything else that it is to be started again. All
    methods raise `ServiceError` when what they promise does not come true.
    """

    kind = ""

    @abstractmethod
    def install(self, spec: ServiceSpec) -> bool:
        """Have it run like this now and from each boot on; False when it was so already."""

    @abstractmethod
    def start(self, label: str) -> None:
        """Have it run, when it is stopped or has ended."""

    @abstractmethod
    def stop(self, label: str) -> bool:
        """End it, until `start` or the next boot; False when it was not there. Returns when it has ended."""

    @abstractmethod
    def reload(self, label: str) -> None:
        """Have it read its configuration again (SIGHUP)."""

    @abstractmethod
    def state(self, label: str) -> ServiceState: ...

    @abstractmethod
    def remove(self, label: str) -> bool:
        """End it and forget it; False when there was none."""

    def restart(self, label: str) -> None:
        """End it as it wants to be ended, and start it."""
        self.stop(label)
        self.start(label)


def run(runner: Runner, *argv: str, stdin: bytes = b"") -> Ended:
    """Raises `ServiceError` when it does not end."""
    try:
        return runner.run(argv, stdin=stdin)
    except RunnerTimeoutError as error:
        raise ServiceError(str(error)) from error


def until(done: Callable[[], bool], limit_s: float, look_s: float, pause: Callable[[float], None]) -> bool:
    """Look again and again until it is done; False when it is not in time."""
    for _ in range(max(1, round(limit_s / look_s))):
        if done():
            return True
        pause(look_s)
    return done()
