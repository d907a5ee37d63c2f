"""How spans are posted: the answer is bounded in time and in size, as it is not by `requests` itself.

Imported only where traces are configured.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

_MOST_BYTES = 64 * 1024
"""Of an answer's body; a collector has nothing to say but whether it took the spans."""
_PIECE_BYTES = 4096


class Session(requests.Session):
    """For one thread. Whatever it raises, the spans are lost."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._limit_s = limit_s
        self._line = _Line()
        self.mount("http://", self._line)
        self.mount("https://", self._line)
        self.hooks["response"].append(_refuse_redirection)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Raises `ValueError` where the answer takes longer or is larger than it may be, and `OSError`."""
        late = threading.Event()
        timer = threading.Timer(self._limit_s, self._give_up, (late,))
        timer.daemon = True
        timer.start()
        try:
            response = super().send(request, **{**options, "stream": True})
            _read(response)
        except (OSError, ValueError):
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():  # what came until then may look like an answer
            raise ValueError(f"it did not answer within {self._limit_s:g} s")
        return response

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        self._line.cut()


class _Line(HTTPAdapter):
    """Can end the connection while somebody waits for what comes of it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        super().__init__()

    def get_connection_with_tls_context(self, *given: Any, **options: Any) -> HTTPConnectionPool:
        pool = super().get_connection_with_tls_context(*given, **options)
        kind = cast("Callable[..., HTTPConnection]", type(pool).ConnectionCls)
        pool.ConnectionCls = self._watching(kind)  # type: ignore[assignment]
        return pool

    def cut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _watching(self, kind: Callable[..., HTTPConnection]) -> Callable[..., HTTPConnection]:
        def made(*given: Any, **options: Any) -> HTTPConnection:
            connection = kind(*given, **options)
            connect = connection.connect

            def connect_and_keep() -> None:
                connect()
                self._socket = connection.sock  # the connection forgets it where the answer ends with it

            connection.connect = connect_and_keep  # type: ignore[method-assign]
            return connection

        return made


def _read(response: requests.Response) -> None:
    """The whole answer, so that the connection can be used again."""
    size = 0
    for piece in response.iter_content(_PIECE_BYTES):
        size += len(piece)
        if size > _MOST_BYTES:
            response.close()
            raise ValueError(f"its answer has more than {_MOST_BYTES} bytes; is it a collector?")


def _refuse_redirection(response: requests.Response, *_args: object, **_options: object) -> None:
    """The exporter follows none, and takes one for success."""
    if 300 <= response.status_code < 400:
        response.close()
        raise ValueError(
            f"it answers {response.status_code} and points to {response.headers.get('location')!r};"
            " `endpoint` has to be the last address"
        )
