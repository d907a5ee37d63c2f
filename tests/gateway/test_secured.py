"""Connections that shake hands: so many at the same time, and no more."""

from __future__ import annotations

from typing import Any, cast

from gateway.secured import _MAX_HANDSHAKES, Secured
from gateway.tls import Tls
from protocol.config import LimitsConfig


class Line:
    """A connection and its transport in one."""

    def __init__(self, connections: set[Any]) -> None:
        self.connections = connections
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted


def test_with_too_many_handshakes_the_oldest_is_ended_and_those_that_are_over_do_not_count():
    secured = Secured(cast("Tls", None), LimitsConfig())
    connections: set[Any] = set()

    def begin() -> Line:
        line = Line(connections)
        secured.began(cast("Any", line), cast("Any", line))
        return line

    lines = [begin() for _ in range(_MAX_HANDSHAKES)]
    assert not any(line.aborted for line in lines)
    begin()
    assert [line.aborted for line in lines[:2]] == [True, False]
    connections.add(lines[1])  # it shook hands
    lines[2].abort()  # it left
    lines += [begin(), begin()]
    assert [line.aborted for line in lines[:4]] == [True, False, True, False]
    begin()
    assert lines[3].aborted
