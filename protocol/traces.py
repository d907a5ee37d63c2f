"""Whether a process sends traces, and where to."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from protocol.config import TracesConfig
from protocol.spans import Span

logger = logging.getLogger(__name__)


class Spans(Protocol):
    """Where spans go. Never blocks, but for `close`, which takes seconds at most."""

    def take(self, spans: Iterable[Span]) -> None: ...

    def close(self) -> None: ...


def collector(traces: TracesConfig, service: str, process_id: str) -> Spans | None:
    """None where no traces are configured; where what they take is not installed, that is logged, too."""
    if traces.endpoint is None:
        return None
    try:
        from protocol.collector import Collector  # noqa: PLC0415 (who wants no traces need not have it)
    except ModuleNotFoundError as error:
        logger.error("no traces are sent: %s; run: scripts/install --traces", error)
        return None
    return Collector(traces.endpoint, service, process_id)
