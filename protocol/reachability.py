"""What a plain TCP connection met, in words; and the line of a log that tells it. Pure.

ZeroMQ tries again in silence, so that only a connection of one's own shows why nothing comes of it. On
macOS the same machine may be reached from a terminal and refused to a job of launchd: what counts is
what the job itself met. The numbers differ between systems, the names do not.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

OPEN = "OPEN"
"""It connected."""
UNKNOWN_NAME = "UNKNOWN_NAME"
"""The host's name has no address."""

_OTHER_NUMBERS = {
    51: "ENETUNREACH",
    60: "ETIMEDOUT",
    61: "ECONNREFUSED",
    64: "EHOSTDOWN",
    65: "EHOSTUNREACH",
}
"""Of macOS. On Linux these numbers mean what no connection meets."""
_WORDS = {
    OPEN: (
        "the port takes connections, but no handshake of a gateway comes: another program may listen there,"
        " or the gateway is stuck or starting"
    ),
    UNKNOWN_NAME: "its name has no address here; correct it, or write the address itself",
    "ETIMEDOUT": (
        "nothing answers: the machine is off or asleep, the address is wrong, or a firewall in between drops"
        " what comes"
    ),
    "ECONNREFUSED": (
        "the machine answers, but nothing listens at that port: start the gateway there (clusterctl up), or"
        " correct the port"
    ),
    "EHOSTUNREACH": (
        "there is no way to that host. On macOS, when other programs reach it: local-network privacy refuses"
        ' this process, from which a LaunchDaemon is exempt (supervisor = "launchd", or clusterctl boot show'
        " --daemon). Else the machine is off, or the address is wrong"
    ),
    "ENETUNREACH": "this machine has no network that leads there; check its cable or Wi-Fi, and its routes",
    "EHOSTDOWN": "the machine is off or asleep, or the address is wrong",
    "ECONNRESET": "the machine takes the connection and breaks it off: something in between refuses it",
    "EPERM": "the system forbids it to this process: a firewall or a sandbox of this machine",
    "EACCES": "the system forbids it to this process: a firewall or a sandbox of this machine",
}
_LINE = re.compile(r"gateway (\S+) is out of reach at (\S+): (\w+)(?: \(errno (\d+)\))?: ")
_CONNECTED = re.compile(r"connected to gateway (\S+)")
_STARTED = re.compile(r"worker \S+ starts, incarnation ")


@dataclass(frozen=True)
class Reach:
    """What whoever wanted to reach a gateway met."""

    gateway: str
    endpoint: str
    met: str
    """`OPEN`, the name of an errno, or `UNKNOWN_NAME`."""
    number: int | None = None
    """The errno, as that system counts."""

    @property
    def words(self) -> str:
        """What that means, with the cure."""
        return _WORDS.get(self.met, "the connection fails")

    @property
    def line(self) -> str:
        """As it is logged."""
        number = f" (errno {self.number})" if self.number is not None else ""
        return f"gateway {self.gateway} is out of reach at {self.endpoint}: {self.met}{number}: {self.words}"


def name_of(number: int | None) -> str:
    """The name of an errno of this system, or of macOS where it has that number only."""
    if number is None:
        return "UNKNOWN"
    name = errno.errorcode.get(number, f"ERRNO_{number}")
    return name if name in _WORDS else _OTHER_NUMBERS.get(number, name)


def met_with(error: OSError) -> tuple[str, int | None]:
    """What a connection met that failed so: the name, and the errno where there is one."""
    if isinstance(error, socket.gaierror):
        return UNKNOWN_NAME, None
    if isinstance(error, TimeoutError):
        return "ETIMEDOUT", error.errno or errno.ETIMEDOUT
    # For a name of several addresses, asyncio tells the errors of all, in words.
    found = None if error.errno is not None else re.search(r"\[Errno (\d+)\]", str(error))
    number = int(found[1]) if found else error.errno
    return name_of(number), number


def last_reaches(messages: Iterable[str]) -> dict[str, Reach]:
    """By gateway: what a log tells last of those that were not reached since."""
    found: dict[str, Reach] = {}
    for message in messages:
        if met := _LINE.match(message):
            number = int(met[4]) if met[4] else None
            found[met[1]] = Reach(met[1], met[2], met[3], number)
        elif connected := _CONNECTED.match(message):
            found.pop(connected[1], None)
        elif _STARTED.match(message):
            found.clear()
    return found
