"""The way to a collector of traces: spans in, OTLP over HTTP out, from a thread of its own.

The only module that knows OpenTelemetry, and it is imported only where traces are configured. Whoever has
spans is never held up: those for which there is no room are dropped, and counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from protocol import __version__
from protocol.posting import Session
from protocol.spans import Place, Span

logger = logging.getLogger(__name__)

ROOM = 4096
"""Spans that wait."""
_BATCH = 512
_PAUSE_S = 1.0
_TIMEOUT_S = 5.0
"""For one batch, further tries included."""
_FAREWELL_S = 2.0
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
}


class Collector:
    """Owns the spans that wait, and the thread that sends them."""

    def __init__(self, endpoint: str, service: str, process_id: str) -> None:
        self._endpoint = endpoint
        self._waiting: deque[Span] = deque(maxlen=ROOM)
        self._maker = _Maker(service, process_id)
        self._words = _Words()
        self._exporter = OTLPSpanExporter(endpoint, timeout=_TIMEOUT_S, session=Session(_TIMEOUT_S))
        self._lost = 0
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name="traces", daemon=True)
        self._thread.start()

    def take(self, spans: Iterable[Span]) -> None:
        """From any thread; the oldest make room for the newest."""
        for span in spans:
            self._lost += len(self._waiting) == ROOM
            self._waiting.append(span)

    def close(self) -> None:
        """Send what is left, in two seconds at most; nobody waits for a collector that is not there."""
        self._closing.set()
        self._thread.join(0 if self._failing else _FAREWELL_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _send_on(self) -> None:
        while not self._closing.wait(_PAUSE_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while batch := self._batch():
            if not self._sent(batch):
                self._lost += len(batch)
                return

    def _batch(self) -> list[Span]:
        return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]

    def _sent(self, batch: list[Span]) -> bool:
        self._words.said.clear()
        try:
            sent = self._exporter.export(self._maker.made(batch)) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 (whatever it is: the next batch is tried, too)
            sent, self._words.said = False, [repr(error)]
        if not sent and not self._failing:
            logger.warning(
                "traces cannot be sent to %s, and are lost until they can: %.300s",
                self._endpoint,
                " ".join(self._words.said),
            )
        elif sent and self._failing:
            logger.info("traces are sent to %s again; %d spans were lost", self._endpoint, self._lost)
            self._lost = 0
        self._failing = not sent
        return sent


class _Words(logging.Handler):
    """Hears what the SDK logs, each time anew, of what we tell once."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        theirs = logging.getLogger("opentelemetry")
        theirs.addHandler(self)
        theirs.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class _Maker(SpanProcessor, IdGenerator):
    """Makes the SDK's spans of ours, with the ids that they have already."""

    def __init__(self, service: str, process_id: str) -> None:
        about = {"service.name": service, "service.version": __version__, "service.instance.id": process_id}
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(about), shutdown_on_exit=False, id_generator=self
        )
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer("studiofleet", __version__)
        self._place = Place("0", "0")
        self._made: list[ReadableSpan] = []

    def made(self, spans: Iterable[Span]) -> list[ReadableSpan]:
        for span in spans:
            self._make(span)
        made, self._made = self._made, []
        return made

    def _make(self, span: Span) -> None:
        self._place = span.place
        context = None
        if span.parent_id:
            trace_id, parent_id = int(span.place.trace_id, 16), int(span.parent_id, 16)
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            parent = trace.SpanContext(trace_id, parent_id, is_remote=True, trace_flags=flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        made = self._tracer.start_span(
            span.name,
            context,
            _KINDS[span.kind],
            dict(span.attributes) | ({"error.type": span.error} if span.error else {}),
            start_time=_nanoseconds(span.began),
        )
        if span.error:
            made.set_status(trace.StatusCode.ERROR)
        made.end(_nanoseconds(span.ended))

    # --- asked by the SDK ---

    def generate_trace_id(self) -> int:
        return int(self._place.trace_id, 16)

    def generate_span_id(self) -> int:
        return int(self._place.span_id, 16)

    def on_end(self, span: ReadableSpan) -> None:
        self._made.append(span)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
