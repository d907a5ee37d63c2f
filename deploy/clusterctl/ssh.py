"""Another machine as a `Runner`: the system's own `ssh`, one connection a machine, host keys that are pinned.

Apple's own binaries keep their access to the local network where another program in the same session
is refused, and whoever operates the machines has a working ssh configuration.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.runner import LIMIT_S, Ended, Runner, RunnerTimeoutError
from protocol.addresses import Home
from protocol.folders import socket_folder

PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""The programs of a machine, wherever its user's shell would look."""
_SSH_FAILED = 255
_CONNECT_S = 5
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_S),
    "ConnectionAttempts": "1",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    "ControlMaster": "auto",
    "ControlPersist": "60",
    "LogLevel": "ERROR",
    "GlobalKnownHostsFile": "/dev/null",
    "HashKnownHosts": "no",
    "UpdateHostKeys": "no",
    "CheckHostIP": "no",
    "VerifyHostKeyDNS": "no",
    "ForwardAgent": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
}
_FAULTS = (
    (
        "IDENTIFICATION HAS CHANGED|Host key verification failed|host key is known for",
        "its host key is not the pinned one: it was installed anew, or another machine answers in its place",
        "if it was installed anew: clusterctl node remove {name} --forget, then clusterctl node add",
    ),
    (
        "Permission denied|Too many authentication failures|No more authentication methods",
        "it does not let this user in",
        "put your public key there: ssh-copy-id -p {port} {login}",
    ),
    (
        "Could not resolve hostname",
        "its name is not known",
        "check the name, or give an address",
    ),
    (
        "Connection refused",
        "nothing listens at that port",
        "on a Mac turn on System Settings, General, Sharing, Remote Login; or give another --port",
    ),
    (
        "timed out|not responding|No route to host|Network is unreachable|Host is down",
        "it does not answer",
        "check that it is on, awake and in the network",
    ),
)
_UNKNOWN = ("", "ssh failed", "see what it says there")
_BROKEN = ("", "the connection ended before the program there did", "what it was to do may be done or not")


class HostUnreachableError(Exception):
    """No program can be run on a machine: why, and what to do."""


@dataclass(frozen=True)
class Target:
    """Where a machine is, and as whom to come."""

    name: str
    """As the configuration has it. Its host key is pinned under this name, whatever its address."""
    host: str
    port: int | None = None
    """None: what the ssh configuration says, else 22."""
    user: str | None = None
    """None: what the ssh configuration says, else the user here."""
    identity: Path | None = None
    """The file of a private key. None: those of the ssh configuration and the agent."""

    @property
    def login(self) -> str:
        return f"{self.user}@{self.host}" if self.user else self.host

    def arguments(self) -> list[str]:
        """For `ssh`, without the machine itself."""
        port = ["-p", str(self.port)] if self.port else []
        return port + (["-i", str(self.identity)] if self.identity else [])


def known_hosts(home: Home) -> Path:
    """The file of the pinned host keys, one line a machine."""
    return home.keys / "known_hosts"


class SshRunner(Runner):
    """A machine that is reached with `ssh`.

    `run` gives the program an environment of its own: `PATH` and nothing else. Exit codes pass
    through, except 255, which is ssh's own. Raises `HostUnreachableError` when the program could not
    be run, or its end is unknown.
    """

    def __init__(self, target: Target, home: Home, *, search: str = PATH) -> None:
        self.name = target.name
        self._target = target
        self._home = home
        self._search = search

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", limit_s: float = LIMIT_S) -> Ended:
        return run_ssh(self._target, [*self._options(), "-T"], self._remote(argv), stdin, limit_s)

    def command(self, argv: Sequence[str]) -> list[str]:
        target = self._target
        words = ["ssh", *self._options(), "-T", *target.arguments(), "--", target.login]
        return [*words, self._remote(argv)]

    def at_terminal(self, argv: Sequence[str]) -> int:
        """Run it at the terminal of this process, where it can ask a person; its exit code."""
        target = self._target
        words = ["ssh", *self._options(), "-t", *target.arguments(), "--", target.login]
        return subprocess.run([*words, self._remote(argv)], check=False).returncode

    def script(self, text: str, *arguments: str, limit_s: float = LIMIT_S) -> Ended:
        """Run the text as a shell script, which no process list shows."""
        return self.run(["/bin/sh", "-s", "--", *arguments], stdin=text.encode(), limit_s=limit_s)

    def close(self) -> None:
        """End the connection that waits for further programs."""
        subprocess.run(
            ["ssh", *self._options(), *self._target.arguments(), "-O", "exit", "--", self._target.login],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )

    def _options(self) -> list[str]:
        return ssh_options(self._home, self._target, known_hosts(self._home))

    def _remote(self, argv: Sequence[str]) -> str:
        return shlex.join(["/usr/bin/env", "-i", f"PATH={self._search}", *argv])


def ssh_options(home: Home, target: Target, pinned: Path, *, accept_new: bool = False) -> list[str]:
    """Options of `ssh` that hold for each of our connections; `pinned` is the file of host keys."""
    named = {
        **_OPTIONS,
        "HostKeyAlias": target.name,
        "UserKnownHostsFile": _quoted(pinned),
        "StrictHostKeyChecking": "accept-new" if accept_new else "yes",
        "ControlPath": _quoted(control_path(home, target)),
    }
    if target.identity:
        named["IdentitiesOnly"] = "yes"  # with an agent full of other keys, sshd would hang up before it
    return [word for key, value in named.items() for word in ("-o", f"{key}={value}")]


def control_path(home: Home, target: Target) -> Path:
    """The socket of the machine's connection; ssh makes it under a name that is 17 bytes longer."""
    place = f"{target.name} {target.login} {target.port} {target.identity}"
    return socket_folder(home) / f"ssh-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def _quoted(path: Path) -> str:
    """As ssh reads a file's name in its configuration."""
    return '"' + str(path).replace("%", "%%") + '"'


def run_ssh(target: Target, options: Sequence[str], remote: str, stdin: bytes, limit_s: float) -> Ended:
    """Run a command line there. What ssh itself has to say is kept apart from what the program says."""
    with tempfile.NamedTemporaryFile(prefix="studiofleet-ssh-") as log:
        command = ["ssh", "-E", log.name, *options, *target.arguments(), "--", target.login, remote]
        try:
            ended = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                timeout=limit_s,
                check=False,
                start_new_session=True,  # Ctrl-C is for us: what is shared by what undoes it would end, too
            )
        except FileNotFoundError as error:
            raise HostUnreachableError("there is no `ssh` on this machine; install OpenSSH") from error
        except subprocess.TimeoutExpired as error:
            raise RunnerTimeoutError(
                f"{target.name}: {_shown(remote)} did not end within {limit_s:g} s"
            ) from error
        words = Path(log.name).read_text(errors="replace").strip()
    if ended.returncode == _SSH_FAILED:
        raise HostUnreachableError(explain(target, words))
    return Ended(
        ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
    )


def explain(target: Target, words: str) -> str:
    """Why a machine cannot be reached, and what to do, from what ssh said.

    It says nothing when a shared connection breaks, nor when a program itself ends with 255.
    """
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    found = (fault for fault in _FAULTS if re.search(fault[0], words))
    _pattern, cause, cure = next(found, _UNKNOWN if lines else _BROKEN)
    advice = cure.format(name=target.name, login=target.login, port=target.port or 22)
    said = f"  (ssh: {lines[-1]})" if lines else ""
    attempt = shlex.join(["ssh", *target.arguments(), target.login])
    return f"{target.name} ({target.host}): {cause}; {advice}. To try: {attempt}{said}"


def _shown(remote: str) -> str:
    return remote.rpartition(f"{PATH} ")[2][:80]
