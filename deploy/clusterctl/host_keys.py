"""The host keys of nodes: learned once, shown to a person, pinned under the node's name."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from clusterctl.ssh import HostUnreachableError, Target, known_hosts, run_ssh, ssh_options
from protocol.addresses import Home
from protocol.folders import private_folder
from protocol.keyfiles import write_private
from protocol.locks import folder_locked

_LIMIT_S = 30.0


@dataclass(frozen=True)
class HostKey:
    """As a line of `known_hosts` has it."""

    line: str
    fingerprint: str
    """SHA256:…, as `ssh-keygen -l` prints it."""


def learn(home: Home, target: Target) -> HostKey:
    """The key that the machine shows now, whoever may log in there. Raises `HostUnreachableError`."""
    with tempfile.TemporaryDirectory(prefix="studiofleet-ssh-") as folder:
        seen = Path(folder) / "known_hosts"
        options = ["-o", "ControlMaster=no", "-o", "ControlPath=none"]
        options += ssh_options(home, target, seen, accept_new=True)
        try:
            run_ssh(target, options, "true", b"", _LIMIT_S)
        except HostUnreachableError:
            if not seen.exists():  # it did not come so far as to show its key
                raise
        line = seen.read_text().strip()
        shown = subprocess.run(
            ["ssh-keygen", "-l", "-f", str(seen)], capture_output=True, text=True, check=True
        ).stdout
    return HostKey(line, shown.split()[1])


def pinned(home: Home, name: str) -> str | None:
    """The line of that node."""
    return next((line for line in _lines(home) if line.split()[0] == name), None)


def pin(home: Home, name: str, key: HostKey | None) -> None:
    """Expect that key from now on; None: forget the node's. Raises `AddressError` and `OSError`."""
    with folder_locked(private_folder(home.keys)):
        lines = [line for line in _lines(home) if line.split()[0] != name]
        lines += [key.line] if key is not None else []
        write_private(known_hosts(home), "".join(f"{line}\n" for line in lines))


def _lines(home: Home) -> list[str]:
    path = known_hosts(home)
    return [line for line in path.read_text().splitlines() if line.strip()] if path.exists() else []
