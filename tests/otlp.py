"""A collector of traces for tests: it takes OTLP over HTTP on loopback, and keeps what came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Seen:
    """One span as it was received."""

    name: str
    service: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    error: str
    kind: str
    attributes: dict[str, Any] = field(hash=False)


class Collector:
    """What came so far. `status` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[Seen]:
        return [span for body in list(self.bodies) for span in _read(body)]

    def trace(self, trace_id: str) -> list[Seen]:
        return sorted((s for s in self.spans if s.trace_id == trace_id), key=lambda span: span.began_ns)


@contextmanager
def collecting(port: int = 0) -> Iterator[tuple[str, Collector]]:
    """Its address, and what it got."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/x-protobuf"
            collector.asked += 1
            if collector.status == 200:
                collector.bodies.append(body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _read(body: bytes) -> Iterator[Seen]:
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = {each.key: each.value.string_value for each in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield _seen(span, about)


def _seen(span: trace_pb2.Span, about: dict[str, str]) -> Seen:
    attributes = {each.key: _value(each.value) for each in span.attributes}
    failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert failed == ("error.type" in attributes)
    return Seen(
        span.name,
        about["service.name"],
        about["service.instance.id"],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        attributes.get("error.type", ""),
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        attributes,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
