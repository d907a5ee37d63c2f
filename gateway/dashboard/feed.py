"""`GET /admin/feed`: what the dashboard shows, once a second, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import math

from starlette.types import Receive, Scope, Send

from gateway.access import AdminKey
from gateway.body import wait_for_disconnect
from gateway.cluster import Cluster
from gateway.dialects import sse
from protocol.errors import ClusterError, ErrorCode

PERIOD_S = 1.0
_MOST_VIEWERS = 32
_MOST_FAILURES = 20
"""Requests that failed; the newest are told."""


class Feed:
    """A raw ASGI endpoint. What it tells is made once for all who look."""

    def __init__(self, cluster: Cluster, key: AdminKey) -> None:
        self._cluster = cluster
        self._key = key
        self._clock = asyncio.get_running_loop().time
        self._viewers = 0
        self._event = b""
        self._made_at = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ClusterError` before anything is told."""
        self._check(scope)
        if self._viewers >= _MOST_VIEWERS:
            message = f"{self._viewers} dashboards are open, which is as many as may be; close one"
            raise ClusterError(ErrorCode.OVERLOADED, message)
        self._viewers += 1
        gone = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            await self._tell(gone, scope, send)
        finally:
            gone.cancel()
            self._viewers -= 1

    def _check(self, scope: Scope) -> None:
        """Raises `ClusterError` unless the viewer may read."""
        peer = scope["client"][0] if scope.get("client") else ""
        self._key.check_reader(scope["headers"], peer)

    async def _tell(self, gone: asyncio.Task[None], scope: Scope, send: Send) -> None:
        """Until the viewer leaves, its key is replaced, or the gateway stops, which the last event tells."""
        while not gone.done():
            try:
                self._check(scope)
            except ClusterError:  # whoever asks again is told why
                await send({"type": "http.response.body", "body": b""})
                return
            last = scope["method"] == "HEAD" or self._cluster.stopping
            await send({"type": "http.response.body", "body": self._latest(), "more_body": not last})
            if last:
                return
            await asyncio.wait({gone}, timeout=PERIOD_S)

    def _latest(self) -> bytes:
        now = self._clock()
        if now - self._made_at >= PERIOD_S / 2:
            failures = self._cluster.dispatcher.lives.failures(_MOST_FAILURES, now)
            self._event = sse.event({**self._cluster.state(), "failures": failures})
            self._made_at = now
        return self._event
