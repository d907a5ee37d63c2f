"""What a gateway takes from the machine: its addresses for clients and for workers, and descriptors."""

from __future__ import annotations

import errno
import logging
import resource
import socket
from pathlib import Path

import zmq

from gateway.client import Wire
from protocol.addresses import Home, endpoint, is_tcp, split_http
from protocol.config import ClusterConfig, GatewayConfig
from protocol.folders import private_folder, socket_folder
from protocol.keyfiles import KeyFileError
from protocol.wire_keys import read_wire_secret

logger = logging.getLogger(__name__)

BACKLOG = 512
_OTHER_DESCRIPTORS = 2 * BACKLOG + 128
"""Connections are taken in such bursts before one that is too many is ended; and files, workers."""


class StartError(ValueError):
    """The gateway cannot start until a person changes something: what, in words."""


def connection_limit(wanted: int) -> int:
    """As many connections as the system gives descriptors for, at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_DESCRIPTORS
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = wanted if soft >= needed else min(wanted, soft // 2)
    if found < wanted:
        logger.warning(
            "the system gives %d descriptors: %d connections are taken, not %d", soft, found, wanted
        )
    return found


def bind_http(gateway: GatewayConfig) -> socket.socket:
    """The listening socket for clients. Raises `StartError`."""
    host, port = split_http(gateway.http)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Named by its protocol: only then does asyncio switch off Nagle's delay on its connections.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        raise StartError(
            f"{gateway.http} cannot be bound ({error.strerror or error}); stop the process that has it,"
            f" or choose another address for the gateway {gateway.id!r}"
        ) from error
    return listener


def bind_wire(gateway: GatewayConfig, home: Home, cluster_config: ClusterConfig) -> Wire:
    """The socket for workers. Raises `StartError` and `AddressError`."""
    endpoints = [endpoint(listen, gateway.id, home) for listen in gateway.listen]
    secret = _wire_secret(gateway, home)
    private_folder(home.run)
    if "ipc" in gateway.listen:
        socket_folder(home)
        _refuse_if_served(home.socket(gateway.id), gateway.id)
    try:
        return Wire(endpoints, cluster_config.heartbeat.interval_s, secret)
    except zmq.ZMQError as error:
        raise StartError(
            f"{' and '.join(endpoints)} cannot be bound ({error}); stop the process that has it,"
            f" or choose another address to listen on for the gateway {gateway.id!r}"
        ) from error


def _wire_secret(gateway: GatewayConfig, home: Home) -> str:
    """The key for what is reached over tcp; empty where nothing is, or it is to be open."""
    if gateway.insecure_tcp or not any(is_tcp(listen) for listen in gateway.listen):
        return ""
    try:
        return read_wire_secret(home, gateway.id)
    except KeyFileError as error:
        raise StartError(str(error)) from error


def _refuse_if_served(path: Path, gateway_id: str) -> None:
    """ZeroMQ takes a socket's place, whoever listens there; one that a killed process left is fair game."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(str(path)) in (0, errno.EAGAIN):
            raise StartError(
                f"another process serves {path}; stop it, or give the gateway {gateway_id!r} another id"
            )


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The base URL of what listens there."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
