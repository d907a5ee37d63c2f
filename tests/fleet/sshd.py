"""Machines on loopback: for each a real sshd with a host key, a port and a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.ssh import Target

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None, reason="sshd is not installed")

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
MaxSessions 100
LogLevel VERBOSE
ForceCommand {folder}/door
"""
_DOOR = """\
#!/bin/sh
if [ -e {folder}/fault ] && printf '%s' "$SSH_ORIGINAL_COMMAND" | grep -qF "$(cat {folder}/fault)"; then
    [ -e {folder}/lasts ] || mv {folder}/fault {folder}/befallen
    . {folder}/instead
    exit
fi
exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""
"""By which each command comes in: what is in the file `instead` is done for one with the words in `fault`."""
COMMAND = '/bin/sh -c "$SSH_ORIGINAL_COMMAND"'
CUT = "kill -9 $PPID"
"""In a fault: the connection is lost."""
_START_S = 20.0


@dataclass(frozen=True)
class Machine:
    """A machine that can be reached, with a folder in which everything of it is."""

    name: str
    folder: Path
    port: int
    identity: Path

    @property
    def target(self) -> Target:
        return Target(self.name, "127.0.0.1", self.port, identity=self.identity)

    @property
    def host_key(self) -> str:
        """Its public half: kind and key."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    @property
    def fingerprint(self) -> str:
        """Of its public half."""
        key = str(self.folder / "host_key.pub")
        told = subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True)
        return told.stdout.split()[1]

    def befall(self, words: str, instead: str, *, lasts: bool = False) -> None:
        """The next command with those words there fails: these lines of sh run instead of it.

        `lasts`: each one, until `heal`.
        """
        self.heal()
        (self.folder / "instead").write_text(instead)
        if lasts:
            (self.folder / "lasts").touch()
        (self.folder / "fault").write_text(words)

    def heal(self) -> bool:
        """Without faults from now on; whether one has befallen it."""
        for name in ("fault", "lasts"):
            (self.folder / name).unlink(missing_ok=True)
        try:
            (self.folder / "befallen").unlink()
        except FileNotFoundError:
            return False
        return True

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")


@contextlib.contextmanager
def machine(name: str, folder: Path) -> Iterator[Machine]:
    """Start one, and end it."""
    folder.mkdir(parents=True)
    identity = make_key(folder / "client_key")
    make_key(folder / "host_key")
    shutil.copy(f"{identity}.pub", folder / "authorized_keys")
    with sshd(folder) as port:
        yield Machine(name, folder, port, identity)


def make_key(path: Path) -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


@contextlib.contextmanager
def sshd(folder: Path, port: int | None = None) -> Iterator[int]:
    """Run the server of a folder that has `host_key` and `authorized_keys`; its port."""
    assert SSHD is not None
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it locks its helper in, as root
    port = port or free_port()
    config = folder / "sshd_config"
    config.write_text(_CONFIG.format(port=port, folder=folder))
    (folder / "door").write_text(_DOOR.format(folder=folder))
    (folder / "door").chmod(0o755)
    with (folder / "sshd.log").open("ab") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _wait_until_it_listens(process, port, folder / "sshd.log")
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
