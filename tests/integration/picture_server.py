"""A server of pictures on loopback that does what it is told, however wrong."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.pictures import png

Answer = bytes | Callable[[socket.socket], object]


def whole(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def moved(url: str, status: str = "302 Found") -> bytes:
    return whole(b"", f"Location: {url}", status=status)


class PictureServer:
    """Answers by path; what is asked for is kept, with all of its head."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {"/ok.png": whole(png(), "Content-Type: image/png")}
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.tls: ssl.SSLContext | None = None
        self.over = threading.Event()

    @property
    def paths(self) -> list[str]:
        return [head.split(b" ")[1].decode() for head in self.heads]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}{path}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        with contextlib.suppress(OSError):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    if not (piece := connection.recv(4096)):
                        return
                    head += piece
                self.heads.append(head)
                path = head.split(b" ")[1].decode().partition("?")[0]
                answer = self.answers.get(path, whole(b"", status="404 Not Found"))
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                else:
                    answer(connection)

    def close(self) -> None:
        """Idempotent."""
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def picture_server(tls: ssl.SSLContext | None = None) -> Iterator[PictureServer]:
    server = PictureServer()
    server.tls = tls
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
