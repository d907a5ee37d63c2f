"""What is written at once is what uvicorn would write, to the byte; who watches hears of a loss."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.line import Line, chunk


class Transport:
    def __init__(self) -> None:
        self.written = b""
        self.closing = False
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

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
    assert line.is_chunked
    line.write(chunk(piece))
    asyncio.run(begun(theirs).send({"type": "http.response.body", "body": piece, "more_body": True}))
    assert ours.written == theirs.written


def test_where_uvicorn_makes_no_chunks_there_are_none():
    cycle = begun(Transport())
    cycle.chunked_encoding = False
    assert not Line(cycle).is_chunked


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
    assert seen == [True, False, True, False]


def test_who_watches_is_told_when_the_client_leaves_and_nobody_else():
    told: list[str] = []
    line = Line(cycle_of(Transport()))
    line.lost()
    line.watch(lambda: told.append("left"))
    assert told == []
    line.lost()
    line.watch(None)
    line.lost()
    assert told == ["left"]


def test_who_watches_too_late_is_told_at_once():
    told: list[str] = []
    cycle = cycle_of(Transport())
    cycle.disconnected = True
    Line(cycle).watch(lambda: told.append("left"))
    assert told == ["left"]


def test_after_a_long_body_the_connection_is_read_again_or_nobody_would_see_the_client_leave():
    transport = Transport()
    cycle = cycle_of(transport)
    cycle.flow.pause_reading()
    Line(cycle).watch(lambda: None)
    assert transport.reading
