"""Whether an address can be bound, before a gateway tries."""

from __future__ import annotations

import errno
import socket

from protocol.addresses import split_http


def busy_port(address: str) -> bool:
    """Whether another program listens at HOST:PORT. Other faults are for the gateway to name."""
    host, port = split_http(address)
    if port == 0:
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
