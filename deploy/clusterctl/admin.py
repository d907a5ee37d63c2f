"""What a running gateway tells about itself and the workers: its read-only `GET /admin/state`."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.states import WorkerState

_TIMEOUT_S = 1.0


class GatewayView(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway, by itself."""

    id: str
    url: str = ""
    state: str = ""
    pid: int | None = None
    version: str = ""
    streams: int = 0
    queued: int = 0


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as a gateway sees it."""

    id: str
    model: str = ""
    aliases: tuple[str, ...] = ()
    node: str = ""
    engine: str = ""
    state: str = ""
    detail: str = ""
    progress: float | None = None
    pid: int | None = None
    incarnation: str | None = None
    running: int = 0
    waiting: int = 0
    max_num_seqs: int | None = None
    max_waiting: int | None = None
    prefill_tokens: int = 0
    kv_tokens: int | None = None
    rejected: int = 0
    breaker: str = ""
    last_error: str | None = None
    heartbeat_age_s: float | None = None


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The requests for one model that wait in a gateway."""

    model: str
    waiting: int = 0


class AdminState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of one gateway."""

    gateways: tuple[GatewayView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    queues: tuple[QueueView, ...] = ()


def read_states(home: Home, config: ClusterConfig) -> dict[str, AdminState]:
    """The answers of the gateways that answer, by gateway id."""
    states = {gateway.id: read_state(home, gateway.id) for gateway in config.all_gateways}
    return {gateway_id: state for gateway_id, state in states.items() if state is not None}


def read_state(home: Home, gateway_id: str) -> AdminState | None:
    """The answer of one gateway; None when it does not answer, or another program does."""
    try:
        address = urlsplit(home.http_url(gateway_id).read_text().strip())
        port = address.port
    except (OSError, ValueError):
        return None
    if address.hostname is None:
        return None
    connection = http.client.HTTPConnection(address.hostname, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/admin/state")
        response = connection.getresponse()
        state = msgspec.json.decode(response.read(), type=AdminState)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()
    return state if any(gateway.id == gateway_id for gateway in state.gateways) else None


def ready_pids(states: Iterable[AdminState]) -> dict[str, int]:
    """The pids of the processes that serve, by id."""
    ready: dict[str, int] = {}
    for state in states:
        for gateway in state.gateways:
            if gateway.pid is not None:
                ready[gateway.id] = gateway.pid
        for worker in state.workers:
            if worker.pid is not None and worker.state == WorkerState.READY:
                ready[worker.id] = worker.pid
    return ready


def observe_ready(home: Home, config: ClusterConfig) -> dict[str, int]:
    """Ask the gateways which processes serve."""
    return ready_pids(read_states(home, config).values())
