"""A running gateway: what its read-only `GET /admin/state` tells, and what it does when told."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.keyfiles import KeyFileError
from protocol.keys import read_admin_key
from protocol.states import WorkerState

T = TypeVar("T")

_TIMEOUT_S = 1.0
_SETTLED_S = 10.0
"""An on-demand worker that was idle for so long has proved itself like one that is ready."""
_ACTION_TIMEOUT_S = 10.0


class _Pinned(http.client.HTTPSConnection):
    """Speaks only to who has the certificate of that SHA-256, whatever names and dates are in it."""

    def __init__(self, host: str, port: int | None, fingerprint: str, timeout_s: float) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._fingerprint = fingerprint

    def connect(self) -> None:
        super().connect()
        certificate = self.sock.getpeercert(binary_form=True) or b""
        if hashlib.sha256(certificate).hexdigest() != self._fingerprint:
            self.close()
            raise ConnectionError("who answers there has another certificate than the gateway")


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
    version: str | None = None
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
    on_demand: bool = False
    memory_mb: int | None = None
    resident_mb: int = 0
    decode_tokens_per_s: float = 0.0
    first_token_s: float | None = None
    state_age_s: float | None = None
    rejected: int = 0
    breaker: str = ""
    last_error: str | None = None
    restarts: int | None = None
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


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A request that failed in a gateway, so many seconds ago."""

    id: str
    model: str = ""
    code: str = ""
    age_s: int = 0


class _Told(msgspec.Struct, frozen=True):
    """The part of an event of `/admin/feed` that its other readers do not have."""

    failures: tuple[Failure, ...] = ()


class ActionError(RuntimeError):
    """A gateway did not do what it was told: why."""


class _Error(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


def read_states(home: Home, config: ClusterConfig) -> dict[str, AdminState]:
    """The answers of the gateways that answer, by gateway id."""
    states = {gateway.id: read_state(home, gateway.id) for gateway in config.local_gateways}
    return {gateway_id: state for gateway_id, state in states.items() if state is not None}


def read_state(home: Home, gateway_id: str) -> AdminState | None:
    """The answer of one gateway; None when it does not answer, or another program does."""
    state = _read(home, gateway_id, "state", AdminState)
    known = state is not None and any(gateway.id == gateway_id for gateway in state.gateways)
    return state if known else None


def read_lives(home: Home, gateway_id: str, request_id: str) -> list[dict[str, Any]]:
    """What became of a client's request, as far as that gateway answers and knows."""
    answer = _read(home, gateway_id, f"requests/{quote(request_id, safe='')}", dict[str, Any]) or {}
    return [life for life in answer.get("requests", ()) if isinstance(life, dict)]


def read_failures(home: Home, config: ClusterConfig) -> list[Failure]:
    """The requests that failed lately in the gateways that answer, the newest first."""
    told = (_read(home, gateway.id, "feed", _Told, _first_event) for gateway in config.local_gateways)
    return sorted((each for one in told if one for each in one.failures), key=lambda each: each.age_s)


def _first_event(response: http.client.HTTPResponse) -> bytes:
    """Of a stream of server-sent events that goes on."""
    return response.readline().removeprefix(b"data: ")


def _read(
    home: Home,
    gateway_id: str,
    path: str,
    kind: type[T],
    body: Callable[[http.client.HTTPResponse], bytes] = http.client.HTTPResponse.read,
) -> T | None:
    """What `GET /admin/PATH` tells; None when nothing of that kind comes."""
    connection = connection_to(home, gateway_id, _TIMEOUT_S)
    if connection is None:
        return None
    try:
        connection.request("GET", f"/admin/{path}", headers=_operators_headers(home))
        return msgspec.json.decode(body(connection.getresponse()), type=kind)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
    finally:
        connection.close()


def _operators_headers(home: Home) -> dict[str, str]:
    """The admin key, where there is one: without it, a gateway tells its state to its own machine alone."""
    with contextlib.suppress(KeyFileError):
        return {"authorization": f"Bearer {read_admin_key(home)}"}
    return {}


def connection_to(home: Home, gateway_id: str, timeout_s: float) -> http.client.HTTPConnection | None:
    """To where the gateway says that it serves; None when it says nothing."""
    try:
        url, *more = home.http_url(gateway_id).read_text().split()
        address = urlsplit(url)
        port = address.port
    except (OSError, ValueError):
        return None
    if address.hostname is None:
        return None
    if address.scheme == "https" and more:
        return _Pinned(address.hostname, port, more[0], timeout_s)
    return http.client.HTTPConnection(address.hostname, port, timeout=timeout_s)


def act(home: Home, gateway_id: str, path: str, body: Mapping[str, Any] | None = None) -> None:
    """Have the gateway do what `POST /admin/PATH` does. Raises `ActionError` and `KeyFileError`."""
    exchange(home, gateway_id, f"/admin/{path}", _ACTION_TIMEOUT_S, body or {})


def exchange(
    home: Home,
    gateway_id: str,
    path: str,
    timeout_s: float,
    body: Mapping[str, Any] | None = None,
    *,
    only: str = "",
) -> tuple[http.client.HTTPMessage, bytes]:
    """What a gateway answers to a GET, or a POST of `body`, with the admin key; `only` names the worker.

    Raises `ActionError` and `KeyFileError`.
    """
    connection = connection_to(home, gateway_id, timeout_s)
    if connection is None:
        raise ActionError(f"the gateway {gateway_id} does not run; to start it: clusterctl up")
    headers = {"content-type": "application/json", "authorization": f"Bearer {read_admin_key(home)}"}
    headers |= {"x-worker-id": only} if only else {}
    try:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, msgspec.json.encode(body), headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ActionError(f"the gateway {gateway_id} does not answer: {error}") from error
    finally:
        connection.close()
    if response.status >= 400:
        raise ActionError(f"the gateway {gateway_id} refuses ({response.status}): {_words(text)}")
    return response.headers, text


def _words(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return body[:200].decode("utf-8", "replace")


def ready_pids(states: Iterable[AdminState]) -> dict[str, int]:
    """The pids of the processes that serve, or would if somebody asked, by id."""
    ready: dict[str, int] = {}
    for state in states:
        for gateway in state.gateways:
            if gateway.pid is not None:
                ready[gateway.id] = gateway.pid
        for worker in state.workers:
            if worker.pid is not None and (worker.state == WorkerState.READY or _is_settled(worker)):
                ready[worker.id] = worker.pid
    return ready


def _is_settled(worker: WorkerView) -> bool:
    return worker.state == WorkerState.IDLE and (worker.state_age_s or 0.0) >= _SETTLED_S


def observe_ready(home: Home, config: ClusterConfig) -> dict[str, int]:
    """Ask the gateways which processes serve."""
    return ready_pids(read_states(home, config).values())
