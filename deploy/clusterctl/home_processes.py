"""What runs of a home, and what it reaches, as facts."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Collection, Iterator, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from clusterctl.control import NAME
from clusterctl.facts import Clock
from clusterctl.ports import busy_port
from protocol.addresses import LOCAL, Home, is_loopback, is_tcp, split_http
from protocol.config import ClusterConfig, GatewayConfig
from protocol.logs import message_of
from protocol.reachability import OPEN, Reach, last_reaches, met_with

_MODULES = ("gateway", "worker")
_PROGRAMS = ("cluster-gateway", "cluster-worker")
_SUPERVISORS = ("clusterctl.supervisor_process",)
_CONNECT_S = 3.0
_LOG_BYTES = 256 * 1024


def find_strays(home: Home, known: Collection[int]) -> dict[int, str]:
    """The gateways, workers and supervisors of the home that run, by pid, with their ids, but for those
    known."""
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        if process.pid in known:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            name = _id_of(process.cmdline())
            if name and process.status() != psutil.STATUS_ZOMBIE and _home_of(process) == home:
                found[process.pid] = name
    return found


def _id_of(words: Sequence[str]) -> str:
    """Empty for a program that is none of ours."""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if module in _SUPERVISORS:
        return NAME
    ours = module in _MODULES or any(Path(word).name in _PROGRAMS for word in words[:2])
    return words[words.index("--id") + 1] if ours and "--id" in words[:-1] else ""


def _home_of(process: psutil.Process) -> Home:
    try:
        return Home.from_environment(process.environ())
    except psutil.Error:  # macOS shows only some of them
        return Home(Path(process.cwd()))


def busy_addresses(config: ClusterConfig, running: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Gateways that do not run, with the address of theirs that another program has."""
    away = [gateway for gateway in config.local_gateways if gateway.id not in running]
    return tuple(
        (gateway.id, address) for gateway in away for address in _addresses(gateway) if busy_port(address)
    )


def _addresses(gateway: GatewayConfig) -> Iterator[str]:
    yield gateway.http
    yield from (_tcp_address(listen) for listen in gateway.listen if is_tcp(listen))


def _tcp_address(listen: str) -> str:
    return listen.removeprefix("tcp://")


def reached(config: ClusterConfig) -> tuple[Reach, ...]:
    """What a connection of this program's own meets, where gateways listen over tcp."""
    return tuple(
        _meet(gateway.id, listen)
        for gateway in config.all_gateways
        for listen in gateway.listen
        if is_tcp(listen)
    )


def _meet(gateway_id: str, listen: str) -> Reach:
    met, number = OPEN, None
    try:
        socket.create_connection(split_http(_tcp_address(listen)), _CONNECT_S).close()
    except OSError as error:
        met, number = met_with(error)
    return Reach(gateway_id, listen, met, number)


def cut_off(home: Home, workers: Collection[str]) -> dict[str, tuple[Reach, ...]]:
    """By worker: the gateways that it does not reach, as it logged from inside its job."""
    found = {worker: tuple(last_reaches(_messages(home.log(worker))).values()) for worker in workers}
    return {worker: reaches for worker, reaches in found.items() if reaches}


def _messages(log: Path) -> Iterator[str]:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        for line in file.read().decode(errors="replace").splitlines():
            yield message_of(line)


def clocks(home: Home, config: ClusterConfig) -> tuple[Clock, ...]:
    """Of the gateways that answer."""
    found = ((gateway.id, _ahead(_url(home, gateway))) for gateway in config.all_gateways)
    return tuple(Clock(gateway_id, ahead) for gateway_id, ahead in found if ahead is not None)


def _url(home: Home, gateway: GatewayConfig) -> str:
    """Where it says that it serves, if it is one of this machine, else where it is configured to."""
    with contextlib.suppress(OSError, IndexError):
        return home.http_url(gateway.id).read_text().split()[0]
    if gateway.node != LOCAL and is_loopback(split_http(gateway.http)[0]):
        return ""  # of the machine there
    return f"{'https' if gateway.tls_cert else 'http'}://{gateway.http}"


def _ahead(url: str) -> float | None:
    """Seconds by which the clock there is ahead; its answers tell whole seconds."""
    address = urlsplit(url)
    if not address.hostname or not address.port:
        return None
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing is said or believed but the time
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            address.hostname, address.port, timeout=_CONNECT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=_CONNECT_S)
    try:
        connection.request("GET", "/health/live")
        date = connection.getresponse().headers["date"]
        now = time.time()
        return parsedate_to_datetime(date).timestamp() + 0.5 - now if date else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
