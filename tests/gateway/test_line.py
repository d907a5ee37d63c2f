"""What is written at once is what uvicorn would write, to the byte."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.line import Line


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        raise AssertionError("not to be cut off")


def cycle_of(transport: Transport) -> RequestResponseCycle:
    scope: Any = {"method": "POST", "http_version": "1.1"}
    logger = logging.getLogger(__name__)
    sink = cast("asyncio.Transport", transport)
    return RequestResponseCycle(
        scope=scope,
        transport=sink,
        flow=FlowControl(sink),
        logger=logger,
        access_logger=logger,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


def begun(transport: Transport) -> RequestResponseCycle:
    cycle = cycle_of(transport)
    asyncio.run(cycle.send({"type": "http.response.start", "status": 200, "headers": []}))
    transport.written = b""
    return cycle


@pytest.mark.parametrize("piece", [b"x", b"data: 1\n\n" * 10])
def test_a_piece_is_framed_as_by_uvicorn(piece: bytes):
    ours, theirs = Transport(), Transport()
    line = Line(begun(ours))
    line.write(line.framed(piece))
    asyncio.run(begun(theirs).send({"type": "http.response.body", "body": piece, "more_body": True}))
    assert ours.written == theirs.written


def test_where_there_are_no_chunks_a_piece_goes_as_it_is():
    transport = Transport()
    cycle = begun(transport)
    cycle.chunked_encoding = False
    line = Line(cycle)
    line.write(line.framed(b"x"))
    assert transport.written == b"x"


def test_nothing_can_be_written_while_the_client_does_not_read_or_is_gone():
    transport = Transport()
    cycle = begun(transport)
    line = Line(cycle)
    seen = [line.is_free]
    cycle.flow.pause_writing()
    seen.append(line.is_free)
    cycle.flow.resume_writing()
    seen.append(line.is_free)
    transport.closing = True
    seen.append(line.is_free)
    transport.closing = False
    cycle.disconnected = True
    seen.append(line.is_free)
    assert seen == [True, False, True, False, False]
