"""The ASGI application: entrance, router, handlers."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import admin
from gateway.admin import Admin
from gateway.chat import ChatCompletions
from gateway.cluster import Cluster
from gateway.metrics import Metrics
from gateway.middleware import Entrance
from gateway.routes import Pages, routes
from protocol.config import LimitsConfig
from protocol.errors import ClusterError, ErrorCode


def make_app(
    cluster: Cluster, limits: LimitsConfig, actions: Admin, connections: Callable[[], int]
) -> ASGIApp:
    """`connections` tells how many are open at the moment."""
    metrics = Metrics(cluster)
    chat = ChatCompletions(cluster, metrics, limits)
    paths = routes(Pages(cluster, metrics), chat) + admin.routes(actions)
    router = Router(paths, redirect_slashes=False, default=_unknown_url)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # makes the router raise for a wrong method rather than answer in plain text
        await router(scope, receive, send)

    return Entrance(app, has_room=lambda: connections() <= limits.max_connections)


async def _unknown_url(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["raw_path"].decode("latin-1")[:200]  # as the client wrote it
    raise ClusterError(ErrorCode.UNKNOWN_URL, f"there is nothing at {scope['method']} {path}")
