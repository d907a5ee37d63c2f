"""The way of one streamed answer to its client: written at once while the client keeps up."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Line:
    """Writes pieces of a body as uvicorn's `send` does, but without a coroutine for each of them.

    Only between the head of the answer and its last piece, which `send` writes.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._is_closing = cycle.transport.is_closing
        self.write = cycle.transport.write
        """Takes what `framed` gives."""
        self.cut = cycle.transport.abort
        """Ends the connection, whatever is still to be sent."""

    @property
    def is_free(self) -> bool:
        """Whether a piece can be written now; else `send` waits until the client has taken what came.

        A connection that was lost is closing before the request hears of it.
        """
        cycle = self._cycle
        return not (
            self._flow.write_paused or cycle.disconnected or cycle.response_complete or self._is_closing()
        )

    def framed(self, piece: bytes) -> bytes:
        if self._cycle.chunked_encoding:
            return b"%x\r\n%b\r\n" % (len(piece), piece)
        return piece
