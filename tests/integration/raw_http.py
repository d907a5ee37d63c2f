"""HTTP as bytes on a socket, for what no client library would send."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.integration.cluster import PATIENCE_S

CHAT = "/v1/chat/completions"
UNVERIFIED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE


def connect(url: str, *, receive_buffer: int | None = None) -> socket.socket:
    """A connection, over TLS where it is https; with a small buffer, one that does not read is felt soon."""
    parts = urlsplit(url)
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(PATIENCE_S)
    connection.connect((parts.hostname, parts.port))
    return UNVERIFIED.wrap_socket(connection) if parts.scheme == "https" else connection


def request(
    body: dict[str, Any], path: str = CHAT, *, version: str = "1.1", headers: Sequence[str] = ()
) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/{version}",
        "Host: gateway",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: gateway", *headers, "", ""]).encode()


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    while True:
        try:
            piece = connection.recv(65_536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """All that comes until it ends like this."""
    received = b""
    while not received.endswith(end):
        piece = connection.recv(65_536)
        assert piece, f"closed after {received[-500:]!r}"
        received += piece
    return received


def exchange(url: str, sent: bytes) -> bytes:
    """Send these bytes; what comes back until the other side closes."""
    with connect(url) as connection:
        connection.sendall(sent)
        return read_to_end(connection)


def parse(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and the rest."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, rest


def error_code(answer: bytes) -> tuple[int, str]:
    """Status and code of an answer in OpenAI's shape that names its request."""
    status, headers, body = parse(answer)
    assert headers["x-request-id"] == headers["request-id"]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["code"]


def is_closed(connection: socket.socket, patience_s: float = PATIENCE_S) -> bool:
    """Whether the other side closes without a word."""
    connection.settimeout(patience_s)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def reset(connection: socket.socket) -> None:
    """Close with a RST rather than a FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def seconds(began: float) -> float:
    return time.monotonic() - began
