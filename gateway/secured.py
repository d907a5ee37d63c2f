"""Connections over TLS: asyncio's protocol beneath ours, with the bounds that it lacks.

asyncio itself would hold a quarter of a MiB for each connection, show nobody the connections that
have not shaken hands yet, and leave a client that speaks plain HTTP without a word.
"""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import Any

from gateway.connection import Connection, whole_answer
from gateway.tls import Tls
from protocol.config import LimitsConfig
from protocol.errors import InvalidRequestError

_HANDSHAKE_S = 10.0
_MAX_HANDSHAKES = 256
"""With more at the same time, the one that began first is ended."""
_BUFFER_BYTES = 32 * 1024
"""Twice the longest record of TLS."""


class Secured:
    """Makes the protocols of new connections; owns those that shake hands."""

    def __init__(self, tls: Tls, limits: LimitsConfig) -> None:
        self._tls = tls
        self._limits = limits
        self._handshakes: dict[Connection, asyncio.Transport] = {}

    def __call__(self, **settings: Any) -> asyncio.BaseProtocol:
        """As uvicorn calls it."""
        connection = Connection(self._limits, **settings)
        return _Beneath(connection, self._tls, self._limits, self)

    def began(self, connection: Connection, transport: asyncio.Transport) -> None:
        """The connection is there, and is to be secured."""
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            self._forget_those_that_are_over()
        if len(self._handshakes) >= _MAX_HANDSHAKES:
            self._handshakes.pop(next(iter(self._handshakes))).abort()
        self._handshakes[connection] = transport

    def _forget_those_that_are_over(self) -> None:
        self._handshakes = {
            connection: transport
            for connection, transport in self._handshakes.items()
            if connection not in connection.connections and not transport.is_closing()
        }


class _Beneath(SSLProtocol):
    """Between the socket and a `Connection`."""

    max_size = _BUFFER_BYTES

    def __init__(self, connection: Connection, tls: Tls, limits: LimitsConfig, secured: Secured) -> None:
        super().__init__(
            connection.loop,
            connection,
            tls.context,
            None,  # type: ignore[arg-type]  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=min(_HANDSHAKE_S, limits.body_timeout_s),  # type: ignore[arg-type]
            ssl_shutdown_timeout=limits.stream_stall_s,  # what was answered goes out in that time
        )
        self._connection = connection
        self._secured = secured
        self._buffer = memoryview(b"")
        self._heard = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connection.beneath = self._raw = transport
        self._secured.began(self._connection, transport)
        super().connection_made(transport)

    def get_buffer(self, n: int) -> memoryview:
        self._buffer = super().get_buffer(n)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._heard:
            self._heard = True
            if chr(self._buffer[0]).isalpha():  # no record of TLS begins with a letter
                self._raw.write(_plain_http())
                self._raw.close()
                return
        super().buffer_updated(nbytes)


def _plain_http() -> bytes:
    error = InvalidRequestError("this address is served over TLS; ask https://", reason="plain_http")
    return whole_answer(error, [])
