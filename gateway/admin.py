"""What an operator does to a running cluster over HTTP: drain, undrain, reload. It takes the admin key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.access import AdminKey
from gateway.body import Intake
from gateway.cluster import Cluster
from gateway.dashboard.feed import Feed
from gateway.flight import Sent
from gateway.registry import WorkerView
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode, InvalidRequestError
from protocol.messages import Drain, GatewayMessage, Undrain

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES = 64 * 1024


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a drain."""

    then: Literal["stay", "exit", "restart"] = "stay"
    timeout_s: float | None = None
    """Running requests get so long; null: as long as they need, or the worker's own limit at its end."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 <= self.timeout_s < float("inf"):
            raise ValueError("Expected a `timeout_s` of 0 seconds or more")


class Admin:
    """The handlers. `reload` reads the configuration again and says how many workers it has."""

    def __init__(
        self, cluster: Cluster, limits: LimitsConfig, key: AdminKey, reload: Callable[[], int]
    ) -> None:
        self._cluster = cluster
        self._intake = Intake(msgspec.structs.replace(limits, max_body_bytes=_MAX_BODY_BYTES))
        self._key = key
        self.feed = Feed(cluster, key)
        self._reload = reload

    async def drain(self, request: Request) -> Response:
        self._key.check(request.headers.raw)
        order = await self._order(request)
        worker = self._worker(request)
        self._send(worker, Drain(then=order.then, timeout_s=order.timeout_s))
        return _accepted(worker, then=order.then)

    async def undrain(self, request: Request) -> Response:
        self._key.check(request.headers.raw)
        worker = self._worker(request)
        self._send(worker, Undrain())
        return _accepted(worker)

    async def reload(self, request: Request) -> Response:
        self._key.check(request.headers.raw)
        try:
            count = self._reload()
        except ValueError as error:
            message = f"the configuration was not read again, the old one holds: {error}"
            raise InvalidRequestError(message) from error
        return Response(msgspec.json.encode({"workers": count}), media_type="application/json")

    async def _order(self, request: Request) -> DrainOrder:
        order, _size = await self._intake.take(request.headers.raw, request.receive, _drain_order)
        return order

    def _worker(self, request: Request) -> WorkerView:
        worker_id = request.path_params["worker"]
        view = self._cluster.registry.named(worker_id)
        if view is not None and view.connection:
            return view
        known = sorted(
            self._cluster.catalog.configured_ids() | {v.worker_id for v in self._cluster.registry.views()}
        )
        if worker_id not in known:
            message = f"there is no worker {worker_id[:100]!r}; known are: {', '.join(known) or 'none'}"
            raise ClusterError(ErrorCode.UNKNOWN_URL, message, reason="worker_not_found")
        message = f"the worker {worker_id!r} is not connected to this gateway; see: clusterctl status"
        raise ClusterError(ErrorCode.NO_WORKER_AVAILABLE, message, reason="worker_not_connected")

    def _send(self, worker: WorkerView, message: GatewayMessage) -> None:
        sent = self._cluster.tell(worker, message)
        if sent is not Sent.OK:
            why = "takes no messages at the moment" if sent is Sent.BUSY else "has just gone"
            raise ClusterError(
                ErrorCode.NO_WORKER_AVAILABLE,
                f"the worker {worker.worker_id!r} {why}; try again",
                reason="worker_not_connected",
            )
        logger.info("worker %s is told: %s", worker.worker_id, message)


def _drain_order(body: bytes) -> DrainOrder:
    try:
        return msgspec.json.decode(body, type=DrainOrder) if body.strip() else DrainOrder()
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"the body of a drain: {error}") from error


def _accepted(worker: WorkerView, **more: Any) -> Response:
    """It was said to the worker; what came of it, the state tells."""
    value = {"worker": worker.worker_id, "pid": worker.pid, "incarnation": worker.incarnation, **more}
    return Response(msgspec.json.encode(value), 202, media_type="application/json")


def routes(admin: Admin) -> list[Route]:
    """Beside `GET /admin/state` and `GET /admin/requests/ID`, which `gateway.routes` has."""
    return [
        Route("/admin/workers/{worker}/drain", admin.drain, methods=["POST"]),
        Route("/admin/workers/{worker}/undrain", admin.undrain, methods=["POST"]),
        Route("/admin/reload", admin.reload, methods=["POST"]),
        Route("/admin/feed", admin.feed, methods=["GET"]),
    ]
