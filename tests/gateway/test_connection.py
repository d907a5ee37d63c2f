"""What a connection asks of the system."""

from __future__ import annotations

import socket

from gateway.connection import prepare


def test_a_client_that_vanished_is_found_within_a_minute():
    with socket.socket() as found:
        prepare(found)
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = [name for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE") if hasattr(socket, name)]
        (idle,) = [found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names[:1]]
        pause = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert idle + pause * found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 60
