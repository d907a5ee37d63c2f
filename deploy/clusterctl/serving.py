"""Telling whoever reads the supervisor's log that the cluster serves: where, and which models."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from clusterctl.supervision import Kind, Process
from protocol.addresses import Home
from protocol.config import ClusterConfig

logger = logging.getLogger(__name__)


class Announcement:
    """Says it once, and again when something had to start meanwhile."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._said = ""

    def look(self, processes: Mapping[str, Process], config: ClusterConfig) -> None:
        line = self._line(processes, config) if is_settled(processes) else ""
        if line and line != self._said:
            logger.info("%s", line)
        self._said = line

    def _line(self, processes: Mapping[str, Process], config: ClusterConfig) -> str:
        ready = {process_id for process_id, process in processes.items() if process.ready_at is not None}
        urls = [self._url(gateway.id) for gateway in config.local_gateways if gateway.id in ready]
        models = {name: None for w in config.workers if w.id in ready for name in (w.name, *w.aliases)}
        down = [process_id for process_id, process in processes.items() if process.is_down]
        return serving_line(urls, list(models), down)

    def _url(self, gateway_id: str) -> str:
        with contextlib.suppress(OSError):
            return self._home.http_url(gateway_id).read_text().partition("\n")[0].strip()
        return gateway_id


def is_settled(processes: Mapping[str, Process]) -> bool:
    """Whether nothing is awaited any more: all are ready, or down for good, and a gateway is ready."""
    wanted = [process for process in processes.values() if process.wanted]
    serving = any(p.spec.kind is Kind.GATEWAY and p.ready_at is not None for p in wanted)
    return serving and all(process.ready_at is not None or process.is_down for process in wanted)


def serving_line(urls: list[str], models: list[str], down: list[str]) -> str:
    """For people."""
    line = (
        f"{', '.join(urls)} serves {', '.join(models) or 'no model yet; to add one: clusterctl add-worker'}"
    )
    if down:
        line += f"; {', '.join(down)} does not run, to see why: clusterctl status"
    return line
