"""Where processes of one home meet: folders, socket paths and ZeroMQ endpoints."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOCAL = "local"
"""The node that is this machine."""
MAX_SOCKET_PATH = 103
"""Bytes of a unix socket path on macOS (Linux has 107)."""
SUPERVISOR = "supervisor"
"""The name under which the supervisor of a home keeps its lock, its pid and its log."""

_LOOPBACK = re.compile(r"^(127\.\d{1,3}\.\d{1,3}\.\d{1,3}|localhost|\[?::1\]?)$")


class AddressError(ValueError):
    """An address that cannot be used, with the reason in words."""


@dataclass(frozen=True)
class Home:
    """The folder that holds the state of one installation: configuration, sockets, logs, keys."""

    path: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Home:
        """`STUDIOFLEET_HOME`, or `~/.studiofleet`."""
        return cls(Path(environ.get("STUDIOFLEET_HOME") or "~/.studiofleet").expanduser().absolute())

    @property
    def config(self) -> Path:
        return self.path / "cluster.toml"

    @property
    def run(self) -> Path:
        """Pid files and locks."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, process_id: str) -> Path:
        """Where stdout and stderr of that process are kept when a supervisor started it."""
        return self.logs / f"{process_id}.log"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def admin_key(self) -> Path:
        """The secret that lets clusterctl act on a gateway."""
        return self.keys / "admin.key"

    @property
    def api_keys(self) -> Path:
        """What clients of the gateways need, and may: hashed keys, with their limits."""
        return self.keys / "api-keys.json"

    @property
    def sockets(self) -> Path:
        """The folder of unix sockets (made 0700): `run`, or a short one where that is too long."""
        longest = self.run / ("x" * 40)
        if len(os.fsencode(longest)) <= MAX_SOCKET_PATH:
            return self.run
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return Path("/tmp") / f"studiofleet-{os.getuid()}-{digest}"  # noqa: S108 (0700, checked by its maker)

    def socket(self, name: str) -> Path:
        """The unix socket of that name. Raises `AddressError` when its path would be too long."""
        path = self.sockets / f"{name}.sock"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise AddressError(
                f"the socket path {path} has more than {MAX_SOCKET_PATH} bytes; use a shorter id"
            )
        return path

    def http_url(self, gateway_id: str) -> Path:
        """The file in which a running gateway of that id writes its base URL."""
        return self.run / f"{gateway_id}.url"

    def down_mark(self, worker_id: str) -> Path:
        """The file that is there while nobody will start the worker by itself; what is in it: `parking`."""
        return self.run / f"{worker_id}.down"

    def attempts(self, worker_id: str) -> Path:
        """The file that is there until a worker has been ready; what it counts in it: `worker.attempts`."""
        return self.run / f"{worker_id}.attempts"

    def memory_claim(self, worker_id: str) -> Path:
        """The file that says how much memory a worker holds, locked while it does."""
        return self.run / f"{worker_id}.memory"

    def lock(self, worker_id: str) -> Path:
        """The file that a worker of that id keeps locked for life."""
        return self.run / f"{worker_id}.lock"


def models_folder(environ: Mapping[str, str]) -> Path:
    """`STUDIOFLEET_MODELS`, or `~/.cache/studiofleet/models`: shared by all homes."""
    return Path(environ.get("STUDIOFLEET_MODELS") or "~/.cache/studiofleet/models").expanduser().absolute()


def endpoint(listen: str, gateway_id: str, home: Home) -> str:
    """The ZeroMQ endpoint of a `listen` entry: `ipc` (a socket in the home) or `tcp://host:port`.

    Raises `AddressError`.
    """
    if listen == "ipc":
        return f"ipc://{home.socket(gateway_id)}"
    tcp_host(listen)
    return listen


def is_tcp(listen: str) -> bool:
    """Whether that `listen` entry, or endpoint, is reached over the network."""
    return listen.startswith("tcp:")


def tcp_host(listen: str) -> str:
    """The host of `tcp://host:port`. Raises `AddressError` when it is not of that form."""
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:]+\]|[^:/\s]+):(\d{1,5})", listen)
    if match is None or not 0 < int(match[2]) < 65536:
        raise AddressError(f'{listen!r} is no address: write "ipc" or "tcp://ADDRESS:PORT"')
    return match[1]


def split_http(address: str) -> tuple[str, int]:
    """Host and port of `host:port` (`[::1]:8000` too; port 0 lets the system choose).

    Raises `AddressError`.
    """
    if "://" in address:
        raise AddressError(f"{address!r} is no address: leave out {address.partition('://')[0]}://")
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise AddressError(f"{address!r} is no address: write HOST:PORT, for example 127.0.0.1:8000")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return _LOOPBACK.match(host) is not None
