"""The processes of one home on this machine: started, signalled, reaped, with their logs and pid files.

Nothing is decided here. Used by the supervisor's only thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.adoption import Adopted, adopt_recorded, adopt_unrecorded
from clusterctl.control import NAME
from clusterctl.identity import identity_of
from clusterctl.launching import available_cores, child_environment
from clusterctl.orphans import reap_orphans
from clusterctl.processes import (
    Child,
    Record,
    describe_exit,
    last_lines,
    last_words,
    launch,
    size_of,
    why_silent,
    write_record,
)
from clusterctl.supervision import Kind, Spec
from clusterctl.sweeping import sweep_process
from protocol import logs
from protocol.addresses import Home
from protocol.config import ClusterConfig

logger = logging.getLogger(__name__)

LAST_LINES = 20
"""Of its log are told with a process that is parked."""

Command = Callable[[Spec, Path], list[str]]


@dataclass(frozen=True)
class Ended:
    """What is known of a process that has ended."""

    id: str
    pid: int
    exit_code: int | None
    """None where only the parent could know."""
    reason: str
    was_ready: bool
    """As a worker itself says; False where nobody knows."""


class Children:
    """By id, those that run."""

    def __init__(self, home: Home, config_file: Path, environ: Mapping[str, str], command: Command) -> None:
        self.environ = dict(environ)
        """Of what is started from now on."""
        self._home = home
        self._config_file = config_file
        self._command = command
        self._children: dict[str, Child] = {}
        self._log_sizes: dict[str, int] = {}
        self._marked: set[str] = set()
        """Workers that remove their mark once they are ready."""

    @property
    def any_adopted(self) -> bool:
        """Whether the end of one sends no signal, so that it must be looked for."""
        return any(child.adopted for child in self._children.values())

    def start(self, spec: Spec, config: ClusterConfig) -> int:
        """Start the process; its pid. Raises `OSError`."""
        log = self._home.log(spec.id)
        _rotate(log, config)
        self._log_sizes[spec.id] = size_of(log)
        environ = child_environment(spec, config, self.environ, available_cores(), sys.platform)
        self._mark(spec)
        child = launch(self._command(spec, self._config_file), environ, self._home.path, log)
        self._children[spec.id] = child
        self._record(spec, child, spec.digest)
        return child.pid

    def reap(self) -> list[Ended]:
        """Those that have ended since the last time; what they started is ended, too.

        Ended processes that were given to this one when their parents ended are let go.
        """
        ended = [(process_id, child) for process_id, child in self._children.items() if child.ended()]
        buried = [self._bury(process_id, child) for process_id, child in ended]
        reap_orphans({child.pid for child in self._children.values() if not child.adopted})
        return buried

    def _bury(self, process_id: str, child: Child) -> Ended:
        del self._children[process_id]
        child.kill_group()
        log = self._home.log(process_id)
        words = last_words(log, self._log_sizes.get(process_id, 0)) or why_silent(log.parent)
        was_ready = process_id in self._marked and not self._home.attempts(process_id).exists()
        self._marked.discard(process_id)
        sweep_process(self._home, process_id)
        reason = describe_exit(child.exit_code, words)
        return Ended(process_id, child.pid, child.exit_code, reason, was_ready)

    def _mark(self, spec: Spec) -> None:
        """A worker may be ready and killed between two looks at the gateways."""
        if spec.kind is Kind.WORKER:
            with contextlib.suppress(OSError):  # then only the gateways tell
                self._home.attempts(spec.id).touch(mode=0o600)
                self._marked.add(spec.id)

    def terminate(self, process_id: str) -> None:
        """Ask it to end."""
        self._children[process_id].signal(signal.SIGTERM)

    def reload(self, process_id: str) -> None:
        """Ask a gateway to read the configuration again."""
        self._children[process_id].signal(signal.SIGHUP)

    def kill(self, process_id: str) -> None:
        """End it and what it started."""
        self._children[process_id].kill()

    def adopt_recorded(self) -> Adopted:
        """Take over what an earlier supervisor left running, by the pid files."""
        return self._adopted(adopt_recorded(self._home))

    def adopt_unrecorded(self, specs: Sequence[Spec]) -> Adopted:
        """Take over those among `specs` whose pid files were not written any more."""
        commands = {spec.id: self._command(spec, self._config_file) for spec in specs}
        adopted = self._adopted(adopt_unrecorded(self._home, specs, commands))
        for process, child in adopted:
            self._record(process.spec, child, process.running_digest)
        return adopted

    def _adopted(self, adopted: Adopted) -> Adopted:
        for process, child in adopted:
            self._children[process.spec.id] = child
            logger.info("%s (pid %d) was running already and is adopted", process.spec.id, child.pid)
        return adopted

    def last_lines(self, process_id: str) -> tuple[str, ...]:
        """The end of its log."""
        return last_lines(self._home.log(process_id), LAST_LINES)

    def _record(self, spec: Spec, child: Child, digest: str) -> None:
        record = Record(
            pid=child.pid, identity=child.identity, kind=spec.kind.value, digest=digest, drain_s=spec.drain_s
        )
        record_process(self._home, spec.id, record)


def record_own(home: Home) -> None:
    """Write the supervisor's own pid file."""
    pid = os.getpid()
    record = Record(pid=pid, identity=identity_of(pid) or "", kind=NAME, digest="", drain_s=0.0)
    record_process(home, NAME, record)


def record_process(home: Home, process_id: str, record: Record) -> None:
    """Write a pid file, where that is possible."""
    try:
        write_record(home.run / f"{process_id}.pid", record)
    except OSError as error:
        # A full disk is no reason to stop serving; another supervisor finds the process without it.
        logger.error("the pid file of %s cannot be written: %s", process_id, error)


def _rotate(log: Path, config: ClusterConfig) -> None:
    """A process that ends before it can look after its log itself must not fill the disk either."""
    if size_of(log) >= config.log.max_bytes:
        with contextlib.suppress(OSError):
            logs.rotate(log, config.log.keep)
