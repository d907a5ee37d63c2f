"""Server-sent events as bytes. Every event is one `data:` line: no `id:`, `event:` or `retry:`."""

from __future__ import annotations

import msgspec

from gateway.failures import error_object
from protocol.errors import ClusterError

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n"
"""A comment with a single line end, glued to the next event: every client skips this form."""


def event(value: object) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(value)


def error_event(error: ClusterError) -> bytes:
    """A failure after the status was sent."""
    return event(error_object(error))
