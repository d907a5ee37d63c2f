"""The way of one streamed answer to its client: written at once while the client keeps up."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Line:
    """Writes pieces of a body as uvicorn's `send` does, but without a coroutine for each of them.

    Only between the head of the answer and its last piece, which `send` writes.
    """

    __slots__ = ("_cycle", "_flow", "_is_closing", "_tell_loss", "cut", "write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._is_closing = cycle.transport.is_closing
        self.write = cycle.transport.write
        """Takes pieces, as chunks where the answer `is_chunked`."""
        self.cut = cycle.transport.abort
        """Ends the connection, whatever is still to be sent."""
        self._tell_loss: Callable[[], None] | None = None

    def watch(self, lost: Callable[[], None] | None) -> None:
        """Call `lost` when the client leaves, at once where it has left; with None, nobody any more.

        What `receive` tells would take a task that waits for it.
        """
        self._tell_loss = lost
        if lost is None:
            return
        self._flow.resume_reading()  # uvicorn stops after a long body; then nobody would see the client leave
        if self._cycle.disconnected:
            lost()

    def lost(self) -> None:
        """The client has left."""
        if self._tell_loss is not None:
            self._tell_loss()

    @property
    def is_free(self) -> bool:
        """Whether a piece can be written now; else `send` waits until the client has taken what came.

        A connection that was lost is closing before who watches hears of it.
        """
        return not (self._flow.write_paused or self._is_closing())

    @property
    def is_chunked(self) -> bool:
        """Whether each piece is framed; known when the head of the answer is out."""
        return bool(self._cycle.chunked_encoding)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
